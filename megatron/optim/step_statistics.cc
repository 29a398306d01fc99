#include "megatron/optim/step_statistics.h"

#include <algorithm>
#include <cmath>

#include "megatron/base/status_macros.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/optimizer.h"
#include "megatron/optim/main_replica.h"
#include "megatron/tensor/trace/trace.h"

namespace megatron {
namespace {

// The numbers that all ranks add up before they decide about a step: the first over an island, the
// others over all islands.
enum Statistic {
  kSumOfSquares,
  kNonFinite,
  kStopRequested,
  kLogRequested,
  kSumOfSquaresOfIslands,
  kNumStatistics
};
constexpr int64_t kCountOffset = 24;  // offset in bytes: an int64 follows the floats
constexpr int64_t kStatisticsBytes = 32;
// The most elements of masters whose squares are summed at once.
constexpr int64_t kMostSummed = int64_t{1} << 20;
// The most elements of gradients that come to the device at once where they lie in host memory:
// enough that launches cost little, and no more memory than a layer takes.
constexpr int64_t kGradientElements = int64_t{1} << 22;
// Calls body(bucket, range) on ranges that cover all elements of which this rank is the main
// replica; with `on_each_data_rank` data-parallel ranks are no replicas of each other. A range may
// include padding between parameters, which is zero in gradients and masters. The ranges, and so
// the order of sums, are the same whatever is sharded.
template <typename Body>
void ForEachMainReplicaRange(const ParameterBuffers& buffers, const ProcessGroups& groups,
                             bool on_each_data_rank, Body body) {
  const Bucket* first = nullptr;  // the bucket in which `range` begins; null: no range is open
  FlatRange range;
  const auto finish = [&] {
    if (first != nullptr) body(*first, range);
    first = nullptr;
  };
  const Bucket* previous = nullptr;
  for (const FlatParameter& flat : buffers.parameters()) {
    const FlatRange replica = on_each_data_rank ? MainReplicaOnDataRank(buffers, flat, groups)
                                                : MainReplicaRange(buffers, flat, groups);
    const Bucket& bucket = buffers.bucket_of(flat);
    const bool follows = previous == &bucket || first == nullptr ||
                         (on_each_data_rank ? bucket.range.begin == previous->range.end
                                            : bucket.part.begin == previous->part.end);
    if (replica.size() == 0 || !follows) finish();
    previous = &bucket;
    if (replica.size() == 0) continue;
    if (first == nullptr) {
      first = &bucket;
      range.begin = replica.begin;
    }
    range.end = replica.end;
  }
  finish();
}

// The most elements whose squares are summed at once: those in host memory come to the device for
// it. The sum depends on the number by rounding, and not on where they are.
int64_t LargestSum(const ParameterBuffers& buffers) {
  return std::min(kMostSummed, buffers.layout().num_elements);
}

// Calls body(part) on parts of a range, each of as many elements as squares of gradients are summed
// at once. The sum depends on the number by rounding, and not on where gradients lie.
template <typename Body>
void ForEachGradientPart(const FlatRange& range, Body body) {
  for (FlatRange part = {range.begin, 0}; part.begin < range.end; part.begin = part.end) {
    part.end = std::min(range.end, part.begin + kGradientElements);
    body(part);
  }
}

// The elements that are made fp32, or come to the device, at once to be summed there.
int64_t ScratchElements(const ParameterBuffers& buffers) {
  const int64_t gradients =
      buffers.copies_gradients() ? std::min(kGradientElements, buffers.layout().num_elements) : 0;
  return std::max(gradients, buffers.has_masters_elsewhere() ? LargestSum(buffers) : 0);
}

}  // namespace

StepStatistics::StepStatistics(const ParameterBuffers* buffers, MemoryLedger* ledger)
    : buffers_(buffers),
      statistics_(buffers->options().device, kStatisticsBytes, "optimizer statistics", ledger),
      sums_(statistics_.At(0, DType::kFloat32, {kNumStatistics}), "optimizer statistics"),
      count_(statistics_.At(kCountOffset, DType::kInt64, {1}), "optimizer statistics") {
  if (const int64_t elements = ScratchElements(*buffers); elements > 0) {
    scratch_ = Buffer(buffers->options().device, elements * SizeOf(DType::kFloat32),
                      "optimizer statistics", ledger);
  }
}

Tensor StepStatistics::scratch() const {
  return scratch_.At(0, DType::kFloat32, {scratch_.bytes() / SizeOf(DType::kFloat32)});
}

absl::StatusOr<StepSums> StepStatistics::SumStep(const StepSumsOptions& options,
                                                 const ProcessGroups& groups,
                                                 const Stream& stream) {
  const Tensor statistics = statistics_.At(0, DType::kFloat32, {kNumStatistics});
  float* const values = sums_.host().data<float>();
  if (values != nullptr) {
    values[kSumOfSquares] = values[kNonFinite] = values[kSumOfSquaresOfIslands] = 0;
    values[kStopRequested] = options.stop_requested ? 1 : 0;
    values[kLogRequested] = options.log_requested ? 1 : 0;
  }
  {
    const TraceSpan span(stream, TimeCategory::kOptimizer, "gradient norm");
    sums_.StartSend(stream);
    ForEachMainReplicaRange(*buffers_, groups, options.own_gradients,
                            [&](const Bucket& bucket, const FlatRange& range) {
                              ForEachGradientPart(range, [&](const FlatRange& part) {
                                ops::SumOfSquares(
                                    stream, static_cast<float>(options.unscale),
                                    buffers_->GradientsOnDevice(bucket, part, scratch(), stream),
                                    statistics.Slice(0, kSumOfSquares, kNonFinite + 1));
                              });
                            });
    groups.world.AllReduce(statistics, ReduceOp::kSum, stream);
    ops::Copy(stream, statistics.Slice(0, kSumOfSquares, kSumOfSquares + 1),
              statistics.Slice(0, kSumOfSquaresOfIslands, kSumOfSquaresOfIslands + 1));
    if (options.islands != nullptr) {
      options.islands->AllReduce(statistics.Slice(0, kNonFinite, kNumStatistics), ReduceOp::kSum,
                                 stream);
    }
    sums_.Fetch(stream);
  }
  if (absl::Status status = groups.world.status(); !status.ok()) return status;
  StepSums sums;
  if (values == nullptr) return sums;
  sums.squares = values[kSumOfSquares];
  sums.non_finite = values[kNonFinite];
  sums.stop_requests = values[kStopRequested];
  sums.log_requests = values[kLogRequested];
  sums.squares_of_islands = values[kSumOfSquaresOfIslands];
  return sums;
}

int64_t StepStatistics::CountZeroGradients(const ProcessGroups& groups,
                                           const Stream& stream) const {
  const Tensor count = statistics_.At(kCountOffset, DType::kInt64, {1});
  ops::Zero(stream, count);
  for (const FlatParameter& flat : buffers_->parameters()) {
    const FlatRange replica = MainReplicaRange(*buffers_, flat, groups);
    ForEachGradientPart(replica, [&](const FlatRange& part) {
      ops::CountZeros(
          stream, buffers_->GradientsOnDevice(buffers_->bucket_of(flat), part, scratch(), stream),
          count);
    });
  }
  groups.world.AllReduce(count, ReduceOp::kSum, stream);
  count_.Fetch(stream);
  return stream.is_meta() ? 0 : *count_.host().data<int64_t>();
}

double StepStatistics::ParametersNorm(const ProcessGroups& groups, const Stream& stream) const {
  const Tensor statistics = statistics_.At(0, DType::kFloat32, {kNumStatistics});
  ops::Zero(stream, statistics);
  const auto add_squares = [&](const Bucket& bucket, const FlatRange& range) {
    for (FlatRange part = {range.begin, 0}; part.begin < range.end; part.begin = part.end) {
      part.end = std::min(range.end, part.begin + LargestSum(*buffers_));
      ops::SumOfSquares(stream, 1, buffers_->MastersOnDevice(bucket, part, scratch(), stream),
                        statistics.Slice(0, kSumOfSquares, kNonFinite + 1));
    }
  };
  ForEachMainReplicaRange(*buffers_, groups, /*on_each_data_rank=*/false, add_squares);
  groups.world.AllReduce(statistics, ReduceOp::kSum, stream);
  sums_.Fetch(stream);
  if (stream.is_meta()) return 0;
  return std::sqrt(static_cast<double>(sums_.host().data<float>()[kSumOfSquares]));
}

}  // namespace megatron
