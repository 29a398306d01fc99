// Sums over the ranks of an NCCL group in the order of ranks, formed in fp32 and rounded once: the
// same bits as those of every other backend (process_group.h), unlike NCCL's own sums.
//
// Each rank is sent its part of every other's buffer and sums it; for an all-reduce it then sends
// the sum to all. That is 2 (n - 1) / n of the buffer sent by each, as in a ring. Scratch memory is
// taken at the first call of a size and kept: a buffer, and two parts in fp32.
#ifndef MEGATRON_COMM_NCCL_RANK_ORDER_SUM_H_
#define MEGATRON_COMM_NCCL_RANK_ORDER_SUM_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "megatron/comm/nccl/nccl_api.h"
#include "megatron/comm/nccl/nccl_group.h"
#include "megatron/tensor/memory.h"

namespace megatron {

// Sums of floating-point numbers. Threads: one. All calls of one object are on one stream.
class RankOrderSum {
 public:
  RankOrderSum(NcclApi* api, NcclGroup* group, int size, int rank)
      : api_(*api), group_(*group), size_(size), rank_(rank) {}

  absl::Status AllReduce(const Tensor& inout, const std::string& what, const Stream& stream);
  absl::Status ReduceScatter(const Tensor& in, const Tensor& out, const std::string& what,
                             const Stream& stream);

 private:
  // Rank r's part of a buffer of `count` elements; the last ones may be short or empty.
  struct Parts {
    int64_t count, length;
    Tensor Of(const Tensor& flat, int rank) const;
  };

  // mine = the sum of all ranks' parts of this rank.
  absl::Status SumMine(const Parts& parts, const Tensor& flat, const Tensor& mine,
                       const std::string& what, const Stream& stream);
  void Reserve(int64_t bytes, const Stream& stream);

  NcclApi& api_;
  NcclGroup& group_;
  const int size_, rank_;
  Buffer scratch_;
  bool is_in_graphs_ = false;     // graphs hold the addresses of scratch memory
  std::vector<Buffer> outgrown_;  // scratch memory that was kept for them
};

}  // namespace megatron

#endif  // MEGATRON_COMM_NCCL_RANK_ORDER_SUM_H_
