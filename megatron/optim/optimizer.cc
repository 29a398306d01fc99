#include "megatron/optim/optimizer.h"

#include <algorithm>
#include <cmath>

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
  return groups.expert_data.rank() == 0 && (cut_over_tensor || groups.expert_tensor.rank() == 0) &&
         (sharding.sharded.contains(Axis::kExpert) || groups.expert.rank() == 0);
}

// Calls body(begin, end) on flat ranges that cover the optimized parameters owned here, and of
// the elements between parameters some; those are zero in gradients and masters.
template <typename Body>
void ForEachOwnedRange(const ParameterBuffers& buffers, const ProcessGroups& groups, Body body) {
  int64_t begin = -1, end = -1;
  for (const ParameterPlace& place : buffers.places()) {
    const FlatRange owned = OwnedRange(buffers, place, groups);
    if (owned.size() > 0) {
      if (begin < 0) begin = owned.begin;
      end = owned.end;
    } else if (begin >= 0) {
      body(begin, end);
      begin = -1;
    }
  }
  if (begin >= 0) body(begin, end);
}

// A section that has no parameters has none on all ranks.
void SumGradients(const ProcessGroup& group, const Tensor& section, const Stream& stream) {
  if (section.numel() > 0) group.AllReduce(section, ReduceOp::kSum, stream);
}

// The sums that are one parameter's own: over the axes that its layer left open, and over the
// stages that share it.
void SumPartialGradient(const Parameter& parameter, const ProcessGroups& groups,
                        const Stream& stream) {
  const Sharding& sharding = parameter.sharding;
  if (sharding.partial.contains(Axis::kTensor)) {
    const ProcessGroup& tensor = sharding.expert_grid           ? groups.expert_tensor
                                 : sharding.tensor_replicas > 1 ? groups.tensor_replicas
                                                                : groups.tensor;
    tensor.AllReduce(parameter.grad, ReduceOp::kSum, stream);
  }
  if (sharding.partial.contains(Axis::kExpert)) {
    groups.expert.AllReduce(parameter.grad, ReduceOp::kSum, stream);
  }
  if (parameter.tied) groups.tied_embedding.AllReduce(parameter.grad, ReduceOp::kSum, stream);
}

}  // namespace

int NumMoments(const OptimizerOptions& options) {
  if (options.kind == OptimizerOptions::kAdamW) return 2;
  return options.sgd_momentum == 0 ? 0 : 1;
}

FlatRange OwnedRange(const ParameterBuffers& buffers, const ParameterPlace& place,
                     const ProcessGroups& groups) {
  const FlatRange whole = {place.begin, place.end};
  if (place.begin < buffers.optimized_begin() || !IsOwner(*place.parameter, groups)) {
    return {place.begin, place.begin};
  }
  if (place.parameter->sharding.expert_grid) return whole;
  return Common(whole, buffers.DensePart(groups.data_context.rank(), groups.data_context.size()));
}

Optimizer::Optimizer(const OptimizerOptions& options, ParameterBuffers* buffers,
                     MemoryLedger* ledger)
    : options_(options),
      buffers_(buffers),
      statistics_(buffers->options().device, kStatisticsBytes, "optimizer statistics", ledger),
      sums_(statistics_.At(0, DType::kFloat32, {kNumStatistics}), "optimizer statistics"),
      count_(statistics_.At(kCountOffset, DType::kInt64, {1}), "optimizer statistics") {
  CHECK_EQ(buffers->options().num_moments, NumMoments(options));
  const FlatRange held = buffers->held();
  for (const ParameterPlace& place : buffers->places()) {
    const FlatRange common = Common({place.begin, place.end}, held);
    if (common.size() == 0) continue;
    segments_.push_back({common.begin - held.begin, common.end - held.begin});
    segment_parameters_.push_back(place.parameter);
  }
}

void Optimizer::FinalizeGradients(const ProcessGroups& groups, const Stream& stream) {
  for (const ParameterPlace& place : buffers_->places()) {
    SumPartialGradient(*place.parameter, groups, stream);
  }
  const int64_t experts_begin = buffers_->experts_begin();
  const Tensor gradients = buffers_->gradients();
  const Tensor dense = gradients.Slice(0, buffers_->optimized_begin(), experts_begin);
  if (!buffers_->options().shard_states) {
    SumGradients(groups.data_context, dense, stream);
  } else if (dense.numel() > 0) {
    const FlatRange held = buffers_->held();
    CHECK_EQ(groups.data_context.size(), buffers_->options().data_parallel_size);
    groups.data_context.ReduceScatter(dense, gradients.Slice(0, held.begin, held.end), stream);
  }
  SumGradients(groups.expert_data, gradients.Slice(0, experts_begin, buffers_->num_elements()),
               stream);
}

absl::StatusOr<StepResult> Optimizer::Step(const StepOptions& options, const ProcessGroups& groups,
                                           const Stream& stream) {
  const double unscale = 1 / options.loss_scale;
  const Tensor gradients = buffers_->gradients();
  const Tensor statistics = statistics_.At(0, DType::kFloat32, {kNumStatistics});
  float* const values = sums_.host().data<float>();
  if (values != nullptr) {
    values[kSumOfSquares] = values[kNonFinite] = 0;
    values[kStopRequested] = options.stop_requested ? 1 : 0;
  }
  sums_.Send(stream);
  ForEachOwnedRange(*buffers_, groups, [&](int64_t begin, int64_t end) {
    ops::SumOfSquares(stream, static_cast<float>(unscale), gradients.Slice(0, begin, end),
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
  ShareWeights(groups, stream);
  return result;
}

void Optimizer::Update(const StepOptions& options, double grad_scale, const Stream& stream) {
  const FlatRange held = buffers_->held();
  if (held.size() == 0) return;
  for (size_t i = 0; i < segments_.size(); ++i) {
    segments_[i].lr = static_cast<float>(options.lr);
    segments_[i].weight_decay =
        segment_parameters_[i]->weight_decay ? static_cast<float>(options.weight_decay) : 0;
  }
  const Tensor gradients = buffers_->gradients().Slice(0, held.begin, held.end);
  const Tensor masters = buffers_->masters();
  const Tensor out =
      buffers_->has_masters() ? buffers_->weights().Slice(0, held.begin, held.end) : Tensor();
  if (options_.kind == OptimizerOptions::kSgd) {
    ops::SgdOptions sgd;
    sgd.momentum = static_cast<float>(options_.sgd_momentum);
    sgd.grad_scale = static_cast<float>(grad_scale);
    ops::SgdUpdate(stream, sgd, segments_, gradients, buffers_->exp_avg(), masters, out);
    return;
  }
  ops::AdamWOptions adam;
  adam.beta1 = options_.adam_beta1;
  adam.beta2 = options_.adam_beta2;
  adam.epsilon = static_cast<float>(options_.adam_epsilon);
  adam.step = applied_steps_;
  adam.grad_scale = static_cast<float>(grad_scale);
  ops::AdamWUpdate(stream, adam, segments_, gradients, buffers_->exp_avg(), buffers_->exp_avg_sq(),
                   masters, out);
}

void Optimizer::ShareWeights(const ProcessGroups& groups, const Stream& stream) const {
  const FlatRange held = buffers_->held();
  if (buffers_->options().shard_states && held.size() > 0) {
    const Tensor weights = buffers_->weights();
    groups.data_context.AllGather(
        weights.Slice(0, held.begin, held.end),
        weights.Slice(0, buffers_->optimized_begin(), buffers_->experts_begin()), stream);
  }
  for (const ParameterPlace& place : buffers_->places()) {
    if (!place.parameter->tied) continue;
    groups.tied_embedding.Broadcast(place.parameter->data, /*root=*/0, stream);
  }
}

int64_t Optimizer::CountZeroGradients(const ProcessGroups& groups, const Stream& stream) const {
  const Tensor count = statistics_.At(kCountOffset, DType::kInt64, {1});
  ops::Zero(stream, count);
  for (const ParameterPlace& place : buffers_->places()) {
    const FlatRange owned = OwnedRange(*buffers_, place, groups);
    if (owned.size() > 0)
      ops::CountZeros(stream, buffers_->gradients().Slice(0, owned.begin, owned.end), count);
  }
  groups.world.AllReduce(count, ReduceOp::kSum, stream);
  count_.Fetch(stream);
  return stream.is_meta() ? 0 : *count_.host().data<int64_t>();
}

double Optimizer::ParametersNorm(const ProcessGroups& groups, const Stream& stream) const {
  const Tensor statistics = statistics_.At(0, DType::kFloat32, {kNumStatistics});
  const int64_t origin = buffers_->held().begin;
  ops::Zero(stream, statistics);
  ForEachOwnedRange(*buffers_, groups, [&](int64_t begin, int64_t end) {
    ops::SumOfSquares(stream, 1, buffers_->masters().Slice(0, begin - origin, end - origin),
                      statistics.Slice(0, kSumOfSquares, kNonFinite + 1));
  });
  groups.world.AllReduce(statistics, ReduceOp::kSum, stream);
  sums_.Fetch(stream);
  if (stream.is_meta()) return 0;
  return std::sqrt(static_cast<double>(sums_.host().data<float>()[kSumOfSquares]));
}

}  // namespace megatron
