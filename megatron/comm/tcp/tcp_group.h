// The state that the calls of one rank in one group of a TcpWorld share.
#ifndef MEGATRON_COMM_TCP_TCP_GROUP_H_
#define MEGATRON_COMM_TCP_TCP_GROUP_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "megatron/comm/tcp/tcp_mesh.h"

namespace megatron {

// Tensors, or parts, up to this long travel with the message that announces them.
constexpr int64_t kTcpEagerBytes = 1 << 13;

struct TcpGroup {
  std::shared_ptr<TcpMesh> mesh;
  std::string path;  // "world/1:tp-0": unique in the world
  std::string name;  // "tp-0"
  uint64_t id = 0;   // hash of the path
  std::vector<int> world_ranks;
  int rank = 0;
  absl::Duration deadline;               // limit of every wait
  uint64_t calls = 0;                    // so far
  std::vector<uint64_t> sent, received;  // messages of exchanges so far, by peer
  std::vector<char> scratch;             // kept from call to call

  int size() const { return static_cast<int>(world_ranks.size()); }
  std::string Describe(int rank) const;  // "rank 1 of tp-0 (world rank 3)"
  std::string DescribeAll(const std::vector<int>& ranks) const;
  int RankOf(int world_rank) const;  // size(): it is no member
  std::vector<int> WorldRanksOf(const std::vector<int>& ranks) const;
  // Returns "rank 1 of tp-0 (world rank 3) was in call 17, all-reduce(sum) of fp32[4]".
  std::string WasIn(const std::string& what) const;
  // Returns why waiting for `ranks` ended, after `what`: the world's failure, or a sentence about
  // them.
  absl::Status WaitFailed(const std::string& what, const absl::Status& why,
                          const std::vector<int>& ranks) const;
  MessageKey Key(FrameKind kind, int peer, uint64_t sequence, uint32_t tag = 0) const {
    return {kind, world_ranks[peer], id, sequence, tag};
  }
};

}  // namespace megatron

#endif  // MEGATRON_COMM_TCP_TCP_GROUP_H_
