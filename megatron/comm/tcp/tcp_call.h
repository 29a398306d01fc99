// One collective call of one rank of a TcpWorld: which parts each rank sends to which.
//
// All ranks first tell all others what they call. Data goes by the call's algorithm: by ring or
// tree as tcp_routed_move.h says, in the mesh by direct exchange. There an all-reduce or
// reduce-scatter cuts the buffer into one share per rank; each rank receives its share of every
// other's buffer, reduces it in the order of ranks and, for an all-reduce, sends the result to all.
// Large shares are cut into segments, so that reducing one overlaps with moving the next; two
// segments are under way at a time.
#ifndef MEGATRON_COMM_TCP_TCP_CALL_H_
#define MEGATRON_COMM_TCP_TCP_CALL_H_

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "megatron/comm/collective.h"
#include "megatron/comm/tcp/tcp_frame.h"
#include "megatron/comm/tcp/tcp_group.h"
#include "megatron/comm/tcp/tcp_routed_move.h"

namespace megatron {

class Stream;

class TcpCall {
 public:
  // The call has number group->calls of the group. `split` is not empty for a Split, which moves no
  // data.
  TcpCall(TcpGroup* group, const CollectiveCall& call, std::string split, const Stream& stream);

  // An error is the world's failure, or becomes it.
  absl::Status Run();

 private:
  struct Piece {
    char* data = nullptr;
    int64_t bytes = 0;
  };

  // Plans the data that goes directly from rank to rank: all but the pieces of a large reduction or
  // broadcast.
  void PlanDirect();
  void PlanAllToAllV();
  absl::Status ExchangeCalls();
  void Unpack();
  void MoveDirect();
  void CopyOwn();

  bool moves_data() const;
  bool reduces() const;
  bool is_small_reduction() const;
  bool spreads_broadcast() const;

  // The share of `owner`, as a range of elements of `in`.
  struct Range {
    int64_t begin = 0, end = 0;
    int64_t count() const { return end - begin; }
  };
  Range Share(int owner) const;
  Range Segment(int owner, int64_t segment) const;
  Piece In(const Range& range) const;

  std::string SmallReductionData(int peer) const;
  void ReduceSmall();
  absl::Status ReduceLarge();
  void ExpectShares(int64_t segment);
  void SendShares(int64_t segment);
  void ExpectResults(int64_t segment);
  void SendResults(int64_t segment);
  void ReduceSegment(int64_t segment);
  void Reduce(const std::vector<const void*>& inputs, int64_t count, void* output) const;

  void ExpectSpread();
  absl::Status SpreadBroadcast();

  absl::Status Await(TcpOperation* operation);
  std::string Describe() const;
  std::vector<int> Awaited() const;  // ranks that have not arrived
  std::string DescribeAwaited() const;
  absl::Status Failed(const absl::Status& why, const std::vector<int>& missing) const;
  void Expect(int peer, uint32_t tag, const Piece& piece, TcpOperation* operation);
  void Send(int peer, uint32_t tag, const Piece& piece, TcpOperation* operation);
  template <typename Fn>
  void ForPeers(const Fn& fn) const {
    for (int peer = 0; peer < size_; ++peer) {
      if (peer != rank_) fn(peer);
    }
  }

  TcpGroup& group_;
  const CollectiveCall& call_;
  const std::string split_;
  const Stream& stream_;
  const int rank_, size_;
  const uint64_t number_;
  const int64_t element_ = 0;  // bytes

  std::optional<TcpRoutedMove> routed_;  // none in the mesh
  std::vector<Piece> send_, receive_;    // one for each peer, if data goes directly
  std::vector<CallMessage> messages_;    // one for each peer
  // True for each peer that has arrived. Other threads read it when the world fails.
  std::vector<std::atomic<bool>> arrived_;
  TcpOperation moving_;
  // Two of each, indexed by the parity of the segment.
  TcpOperation shares_[2], results_[2];
  int64_t segment_elements_ = 0, segments_ = 0;
};

}  // namespace megatron

#endif  // MEGATRON_COMM_TCP_TCP_CALL_H_
