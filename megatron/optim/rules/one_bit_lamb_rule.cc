#include "megatron/optim/rules/one_bit_lamb_rule.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "megatron/ops/compression/sign_codes.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/one_bit_steps.h"

namespace megatron {
namespace {

constexpr char kMemory[] = "optimizer step";

// Places in OneBitLambRule::numbers().
enum Number { kCoefficient, kFactor, kScaling, kNumNumbers };

}  // namespace

// What a range has of one parameter.
struct OneBitLambRule::OneTensor {
  const Parameter* parameter;
  ops::OptimizerSegment segment;
  Tensor gradients, m, v, fresh, masters, weights;
  float* numbers;  // null on the meta device

  double NormOf(const Tensor& x, const UpdateRange& range, const Stream& stream) const {
    return is_cut()
               ? range.norm->Of(x, range.tensor_group, parameter->sharding.tensor_replicas, stream)
               : range.norm->Of(x, ProcessGroup(), 1, stream);
  }
  bool is_cut() const { return parameter->sharding.sharded.contains(Axis::kTensor); }
};

OneBitLambRule::OneBitLambRule(double beta1, double beta2, double epsilon,
                               const OneBitLambOptions& options)
    : options_(options) {
  adamw_.beta1 = beta1;
  adamw_.beta2 = beta2;
  adamw_.epsilon = static_cast<float>(epsilon);
  adamw_.bias_correction = false;
}

OneBitLambRule::OneTensor OneBitLambRule::TensorOf(const UpdateRange& range, size_t index) {
  const ops::OptimizerSegment& segment = range.segments[index];
  const auto part = [&](const Tensor& whole) {
    return whole.empty() ? Tensor() : whole.Slice(0, segment.begin, segment.end);
  };
  return {range.parameters[index]->parameter,
          segment,
          part(range.gradients),
          part(range.states[0]),
          part(range.states[1]),
          part(range.states[2]),
          part(range.masters),
          part(range.weights),
          range.numbers.empty() ? nullptr : &range.numbers[index * kNumNumbers]};
}

void OneBitLambRule::Update(const UpdateRange& range, const Stream& stream) const {
  if (range.rank_step == RankStep::kMean) AverageMomentum(range, stream);
  for (size_t i = 0; i < range.segments.size(); ++i)
    UpdateTensor(range, TensorOf(range, i), stream);
}

void OneBitLambRule::AverageMomentum(const UpdateRange& range, const Stream& stream) const {
  ops::MakeMomentum(stream, adamw_.beta1, range.grad_scale, range.states[0], range.gradients);
  for (size_t i = 0; i < range.segments.size(); ++i) {
    const OneTensor tensor = TensorOf(range, i);
    if (tensor.numbers[kScaling] == 0) StartCompression(range, tensor, stream);
    ops::Scale(stream, tensor.numbers[kScaling], tensor.gradients);
  }
  range.average->Average(*range.bucket, range.gradients, stream);
  for (size_t i = 0; i < range.segments.size(); ++i) {
    const OneTensor tensor = TensorOf(range, i);
    ops::Scale(stream, 1 / tensor.numbers[kScaling], tensor.gradients);
    ops::ZeroWhereZero(stream, tensor.v, tensor.gradients);
  }
}

void OneBitLambRule::StartCompression(const UpdateRange& range, const OneTensor& tensor,
                                      const Stream& stream) const {
  const auto elements = static_cast<double>(tensor.parameter->sharding.global_shape.numel());
  const double rms = tensor.NormOf(tensor.m, range, stream) / std::sqrt(elements);
  // A tensor that had no gradients has no size of its own.
  tensor.numbers[kScaling] =
      rms > double{std::numeric_limits<float>::min()} ? static_cast<float>(1 / rms) : 1;
  ops::Copy(stream, tensor.v, tensor.fresh);
}

void OneBitLambRule::UpdateTensor(const UpdateRange& range, const OneTensor& tensor,
                                  const Stream& stream) const {
  const bool frozen = range.rank_step == RankStep::kMean;
  const ops::OptimizerSegment& segment = tensor.segment;
  const int64_t elements = segment.end - segment.begin;
  const Arena::Scope scope(range.scratch);
  const auto allocate = [&](int64_t count) {
    return range.scratch->Allocate(DType::kFloat32, {count}, kMemory);
  };
  const Tensor step = allocate(elements), decay = allocate(elements), ratio = allocate(1);
  ops::AdamWOptions options = adamw_;
  options.grad_scale = range.grad_scale;
  if (frozen) {
    ops::TakeMomentum(stream, adamw_.beta1, adamw_.beta2, tensor.gradients, tensor.m, tensor.fresh);
    ops::LargestRatio(stream, adamw_.epsilon, tensor.v, tensor.fresh, ratio);
    if (tensor.is_cut()) range.tensor_group.AllReduce(ratio, ReduceOp::kMax, stream);
    // With betas of 1, AdamW leaves the moments as they are.
    options.beta1 = options.beta2 = 1;
  }
  // With a rate of 1 and no decay, AdamW takes its step from weights of 0: step = -m / ...
  ops::Zero(stream, step);
  const ops::OptimizerSegment all = {0, elements, /*lr=*/1, /*weight_decay=*/0};
  ops::AdamWUpdate(stream, options, {&all, 1}, tensor.gradients, tensor.m, tensor.v, step,
                   /*out_N=*/{});
  const double momentum_norm = frozen ? tensor.NormOf(step, range, stream) : 0;
  ops::Copy(stream, tensor.masters, decay);
  ops::Scale(stream, -segment.weight_decay, decay);
  ops::Add(stream, decay, step);
  const double step_norm = tensor.NormOf(step, range, stream);
  const double weight_norm = frozen ? 0 : tensor.NormOf(tensor.masters, range, stream);
  if (stream.is_meta()) return;
  const double coefficient =
      frozen ? FrozenCoefficient(momentum_norm, step_norm, *ratio.data<float>(), tensor.numbers)
             : WarmUpCoefficient(weight_norm, step_norm, tensor.numbers);
  ops::Scale(stream, static_cast<float>(double{segment.lr} * coefficient), step);
  ops::Add(stream, step, tensor.masters);
  if (!tensor.weights.empty()) ops::Copy(stream, tensor.masters, tensor.weights);
}

double OneBitLambRule::WarmUpCoefficient(double weight_norm, double step_norm,
                                         float* numbers) const {
  if (weight_norm == 0 || step_norm == 0) return 1;
  const double coefficient =
      std::clamp(weight_norm / step_norm, options_.min_coeff, options_.max_coeff);
  if (coefficient != 1) {
    numbers[kCoefficient] = static_cast<float>(options_.coeff_beta * numbers[kCoefficient] +
                                               (1 - options_.coeff_beta) * coefficient);
  }
  return coefficient;
}

double OneBitLambRule::FrozenCoefficient(double momentum_norm, double step_norm, double ratio,
                                         float* numbers) const {
  const double part = step_norm == 0 ? 1 : std::min(1.0, momentum_norm / step_norm);
  const double last = numbers[kFactor];
  const double factor =
      std::clamp(std::clamp(ratio * part + 1 - part, options_.factor_min, options_.factor_max),
                 last * (1 - options_.factor_threshold), last * (1 + options_.factor_threshold));
  numbers[kFactor] = static_cast<float>(factor);
  // A mean that no ratio has entered would hold the tensor still from here on.
  const double coefficient = numbers[kCoefficient] == 0 ? 1 : numbers[kCoefficient];
  return coefficient * factor;
}

}  // namespace megatron
