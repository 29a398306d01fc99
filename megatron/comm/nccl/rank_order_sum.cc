#include "megatron/comm/nccl/rank_order_sum.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "megatron/base/round_up.h"
#include "megatron/base/status_macros.h"
#include "megatron/comm/nccl/nccl_calls.h"
#include "megatron/ops/elementwise.h"
#include "megatron/tensor/cuda_graph.h"

namespace megatron {
namespace {

// Elements, so that kernels and NCCL find aligned parts.
constexpr int64_t kAlignment = 64;

}  // namespace

Tensor RankOrderSum::Parts::Of(const Tensor& flat, int rank) const {
  const int64_t begin = std::min(count, length * rank);
  return flat.Slice(0, begin, std::min(count, begin + length));
}

void RankOrderSum::Reserve(int64_t bytes, const Stream& stream) {
  if (bytes <= scratch_.bytes()) return;
  stream.cuda()->Synchronize();
  if (is_in_graphs_) outgrown_.push_back(std::move(scratch_));
  scratch_ = Buffer();  // first: both together may be too much
  scratch_ = Buffer(stream.device(), bytes, "sums in the order of ranks", nullptr);
}

absl::Status RankOrderSum::SumMine(const Parts& parts, const Tensor& flat, const Tensor& mine,
                                   const std::string& what, const Stream& stream) {
  const DType dtype = flat.dtype();
  const int64_t count = mine.numel();
  const int64_t part_bytes = RoundUp(mine.bytes(), Buffer::kAlignment);
  const int64_t sum_bytes = RoundUp(count * SizeOf(DType::kFloat32), Buffer::kAlignment);
  Reserve(part_bytes * size_ + 2 * sum_bytes, stream);
  is_in_graphs_ = is_in_graphs_ || IsCapturing(*stream.cuda());
  const Tensor sum = scratch_.At(part_bytes * size_, DType::kFloat32, {count});
  const Tensor cast = scratch_.At(part_bytes * size_ + sum_bytes, DType::kFloat32, {count});
  std::vector<Tensor> theirs(size_);
  std::vector<Transfer> sends, receives;
  for (int rank = 0; rank < size_; ++rank) {
    theirs[rank] =
        rank == rank_ ? parts.Of(flat, rank) : scratch_.At(part_bytes * rank, dtype, {count});
    if (rank == rank_) continue;
    sends.push_back({rank, parts.Of(flat, rank)});
    receives.push_back({rank, theirs[rank]});
  }
  MEGATRON_RETURN_IF_ERROR(group_.Enqueue(
      what, [&](ncclComm* comm) { return NcclExchange(&api_, sends, receives, comm, stream); },
      stream));
  if (count == 0) return absl::OkStatus();
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == 0) {
      ops::Copy(stream, theirs[rank], sum);
    } else if (dtype == DType::kFloat32) {
      ops::Add(stream, theirs[rank], sum);
    } else {
      ops::Copy(stream, theirs[rank], cast);
      ops::Add(stream, cast, sum);
    }
  }
  ops::Copy(stream, sum, mine);
  return absl::OkStatus();
}

absl::Status RankOrderSum::AllReduce(const Tensor& inout, const std::string& what,
                                     const Stream& stream) {
  const Tensor flat = inout.Flatten();
  const int64_t share = (flat.numel() + size_ - 1) / size_;
  const Parts parts = {flat.numel(), RoundUp(share, kAlignment)};
  const Tensor mine = parts.Of(flat, rank_);
  MEGATRON_RETURN_IF_ERROR(SumMine(parts, flat, mine, what + ", exchanging parts", stream));
  std::vector<Transfer> sends, receives;
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == rank_) continue;
    sends.push_back({rank, mine});
    receives.push_back({rank, parts.Of(flat, rank)});
  }
  return group_.Enqueue(
      what + ", gathering sums",
      [&](ncclComm* comm) { return NcclExchange(&api_, sends, receives, comm, stream); }, stream);
}

absl::Status RankOrderSum::ReduceScatter(const Tensor& in, const Tensor& out,
                                         const std::string& what, const Stream& stream) {
  const Parts parts = {in.numel(), out.numel()};
  return SumMine(parts, in.Flatten(), out.Flatten(), what, stream);
}

}  // namespace megatron
