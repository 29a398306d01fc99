#include "megatron/optim/optimizer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "glog/logging.h"
#include "megatron/ops/elementwise.h"

namespace megatron {
namespace {

// What all ranks add up before they decide about a step.
enum Statistic { kSumOfSquares, kNonFinite, kStopRequested, kNumStatistics };
constexpr int64_t kCountOffset = 16;  // bytes: an int64 stands behind the floats
constexpr int64_t kStatisticsBytes = 24;

bool IsOwner(const Parameter& parameter, const ProcessGroups& groups) {
  const Sharding& sharding = parameter.sharding;
  const bool cut_over_tensor = sharding.sharded.contains(Axis::kTensor);
  if (!sharding.expert_grid) {
    return groups.tensor.rank() %
               (cut_over_tensor ? sharding.tensor_replicas : groups.tensor.size()) ==
           0;
  }
  return (cut_over_tensor || groups.expert_tensor.rank() == 0) &&
         (sharding.sharded.contains(Axis::kExpert) || groups.expert.rank() == 0);
}

// Calls body(bucket, range) on ranges that cover the optimized parameters owned here, and of the
// elements between parameters some; those are zero in gradients and masters. How sums are cut into
// ranges is the same whatever is sharded.
template <typename Body>
void ForEachOwnedRange(const ParameterBuffers& buffers, const ProcessGroups& groups, Body body) {
  const Bucket* bucket = nullptr;  // of the range's begin
  FlatRange range;
  const auto finish = [&] {
    if (bucket != nullptr) body(*bucket, range);
    bucket = nullptr;
  };
  const Bucket* last = nullptr;
  for (const ParameterPlace& place : buffers.places()) {
    const FlatRange owned = OwnedRange(buffers, place, groups);
    const Bucket& mine = buffers.bucket_of(place);
    if (owned.size() == 0 ||
        (last != &mine && bucket != nullptr && mine.part.begin != last->part.end))
      finish();
    last = &mine;
    if (owned.size() == 0) continue;
    if (bucket == nullptr) {
      bucket = &mine;
      range.begin = owned.begin;
    }
    range.end = owned.end;
  }
  finish();
}

}  // namespace

int NumMoments(const OptimizerOptions& options) {
  if (options.kind == OptimizerOptions::kAdamW) return 2;
  return options.sgd_momentum == 0 ? 0 : 1;
}

FlatRange OwnedRange(const ParameterBuffers& buffers, const ParameterPlace& place,
                     const ProcessGroups& groups) {
  const Bucket& bucket = buffers.bucket_of(place);
  if (bucket.section == Section::kCopies || !IsOwner(*place.parameter, groups)) {
    return {place.begin, place.begin};
  }
  return Common(place.range(), bucket.part);
}

Optimizer::Optimizer(const OptimizerOptions& options, ParameterBuffers* buffers,
                     MemoryLedger* ledger)
    : options_(options),
      buffers_(buffers),
      statistics_(buffers->options().device, kStatisticsBytes, "optimizer statistics", ledger),
      sums_(statistics_.At(0, DType::kFloat32, {kNumStatistics}), "optimizer statistics"),
      count_(statistics_.At(kCountOffset, DType::kInt64, {1}), "optimizer statistics") {
  CHECK_EQ(buffers->options().num_moments, NumMoments(options));
  for (const Bucket& bucket : buffers->buckets()) {
    const FlatRange all = buffers->Held(bucket);
    if (all.size() == 0) continue;
    if (held_.empty() || held_.back().range.end != all.begin)
      held_.push_back({&bucket, {all.begin, all.begin}, {}, {}});
    HeldRange& held = held_.back();
    held.range.end = all.end;
    for (int i = bucket.first_place; i < bucket.last_place; ++i) {
      const ParameterPlace& place = buffers->places()[i];
      const FlatRange common = Common(place.range(), all);
      if (common.size() == 0) continue;
      held.segments.push_back({common.begin - held.range.begin, common.end - held.range.begin});
      held.parameters.push_back(place.parameter);
    }
  }
}

absl::StatusOr<StepResult> Optimizer::Step(const StepOptions& options, const ProcessGroups& groups,
                                           const Stream& stream) {
  const double unscale = 1 / options.loss_scale;
  const Tensor statistics = statistics_.At(0, DType::kFloat32, {kNumStatistics});
  float* const values = sums_.host().data<float>();
  if (values != nullptr) {
    values[kSumOfSquares] = values[kNonFinite] = 0;
    values[kStopRequested] = options.stop_requested ? 1 : 0;
  }
  sums_.StartSend(stream);
  ForEachOwnedRange(*buffers_, groups, [&](const Bucket& bucket, const FlatRange& range) {
    ops::SumOfSquares(stream, static_cast<float>(unscale), buffers_->Gradients(bucket, range),
                      statistics.Slice(0, kSumOfSquares, kNonFinite + 1));
  });
  groups.world.AllReduce(statistics, ReduceOp::kSum, stream);
  sums_.Fetch(stream);
  if (absl::Status status = groups.world.status(); !status.ok()) return status;

  StepResult result;
  if (values != nullptr) {
    result.grad_norm = std::sqrt(static_cast<double>(values[kSumOfSquares]));
    result.finite = values[kNonFinite] == 0 && std::isfinite(result.grad_norm);
    result.stop_requested = values[kStopRequested] != 0;
  }
  result.applied = result.finite;
  if (!result.applied) return result;
  double clip = 1;
  if (options.clip_grad > 0) clip = std::min(1.0, options.clip_grad / (result.grad_norm + 1e-6));
  ++applied_steps_;
  Update(options, unscale * clip, stream);
  return result;
}

void Optimizer::Update(const StepOptions& options, double grad_scale, const Stream& stream) {
  for (HeldRange& held : held_) {
    for (size_t i = 0; i < held.segments.size(); ++i) {
      held.segments[i].lr = static_cast<float>(options.lr);
      held.segments[i].weight_decay =
          held.parameters[i]->weight_decay ? static_cast<float>(options.weight_decay) : 0;
    }
    UpdateRange(held, static_cast<float>(grad_scale), stream);
  }
}

void Optimizer::UpdateRange(const HeldRange& held, float grad_scale, const Stream& stream) {
  const Bucket& bucket = *held.bucket;
  const FlatRange& range = held.range;
  const Tensor gradients = buffers_->Gradients(bucket, range);
  const Tensor masters = buffers_->Masters(bucket, range);
  const Tensor out = buffers_->has_masters() ? buffers_->Weights(bucket, range) : Tensor();
  if (options_.kind == OptimizerOptions::kSgd) {
    ops::SgdOptions sgd;
    sgd.momentum = static_cast<float>(options_.sgd_momentum);
    sgd.grad_scale = grad_scale;
    ops::SgdUpdate(stream, sgd, held.segments, gradients, buffers_->ExpAvg(bucket, range), masters,
                   out);
    return;
  }
  ops::AdamWOptions adam;
  adam.beta1 = options_.adam_beta1;
  adam.beta2 = options_.adam_beta2;
  adam.epsilon = static_cast<float>(options_.adam_epsilon);
  adam.step = applied_steps_;
  adam.grad_scale = grad_scale;
  ops::AdamWUpdate(stream, adam, held.segments, gradients, buffers_->ExpAvg(bucket, range),
                   buffers_->ExpAvgSq(bucket, range), masters, out);
}

int64_t Optimizer::CountZeroGradients(const ProcessGroups& groups, const Stream& stream) const {
  const Tensor count = statistics_.At(kCountOffset, DType::kInt64, {1});
  ops::Zero(stream, count);
  for (const ParameterPlace& place : buffers_->places()) {
    const FlatRange owned = OwnedRange(*buffers_, place, groups);
    if (owned.size() > 0)
      ops::CountZeros(stream, buffers_->Gradients(buffers_->bucket_of(place), owned), count);
  }
  groups.world.AllReduce(count, ReduceOp::kSum, stream);
  count_.Fetch(stream);
  return stream.is_meta() ? 0 : *count_.host().data<int64_t>();
}

double Optimizer::ParametersNorm(const ProcessGroups& groups, const Stream& stream) const {
  const Tensor statistics = statistics_.At(0, DType::kFloat32, {kNumStatistics});
  ops::Zero(stream, statistics);
  ForEachOwnedRange(*buffers_, groups, [&](const Bucket& bucket, const FlatRange& range) {
    ops::SumOfSquares(stream, 1, buffers_->Masters(bucket, range),
                      statistics.Slice(0, kSumOfSquares, kNonFinite + 1));
  });
  groups.world.AllReduce(statistics, ReduceOp::kSum, stream);
  sums_.Fetch(stream);
  if (stream.is_meta()) return 0;
  return std::sqrt(static_cast<double>(sums_.host().data<float>()[kSumOfSquares]));
}

}  // namespace megatron
