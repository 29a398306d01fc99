#include "megatron/optim/rules/zero_one_adam_rule.h"

#include "absl/container/inlined_vector.h"
#include "megatron/ops/compression/sign_codes.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/one_bit_steps.h"

namespace megatron {
namespace {

using Segments = absl::InlinedVector<ops::OptimizerSegment, 16>;

// Places in ZeroOneAdamRule::states().
enum State { kMomentum, kSecondMoment, kLocalSteps };

// Returns the segments with another rate, if it is given, and no decay.
Segments WithoutDecay(const UpdateRange& range, const float* lr = nullptr) {
  Segments segments(range.segments.begin(), range.segments.end());
  for (ops::OptimizerSegment& segment : segments) {
    segment.weight_decay = 0;
    if (lr != nullptr) segment.lr = *lr;
  }
  return segments;
}

}  // namespace

ZeroOneAdamRule::ZeroOneAdamRule(double beta1, double beta2, double epsilon,
                                 const ZeroOneSchedule& schedule)
    : schedule_(schedule) {
  options_.beta1 = beta1;
  options_.beta2 = beta2;
  options_.epsilon = static_cast<float>(epsilon);
  options_.bias_correction = false;
}

std::vector<OptimizerState> ZeroOneAdamRule::states() const {
  OptimizerState momentum = {"exp_avg"}, local_steps = {"momentum_accumulator"};
  momentum.differs = local_steps.differs = local_steps.restarts = true;
  return {momentum, {"exp_avg_sq"}, local_steps};
}

void ZeroOneAdamRule::Update(const UpdateRange& range, const Stream& stream) const {
  const Tensor& v = range.states[kSecondMoment];
  switch (range.rank_step) {
    case RankStep::kSum: {
      ops::AdamWOptions options = options_;
      options.grad_scale = range.grad_scale;
      return ops::AdamWUpdate(stream, options, range.segments, range.gradients,
                              range.states[kMomentum], v, range.masters, range.weights);
    }
    case RankStep::kMean:
      ops::Scale(stream, range.grad_scale, range.gradients);
      range.average->Average(*range.bucket, range.gradients, stream);
      ops::ZeroWhereZero(stream, v, range.gradients);
      return StepWithMomentum(range, /*grad_scale=*/1, /*decays=*/true, range.masters,
                              range.weights, stream);
    case RankStep::kLocal:
    case RankStep::kJoin:
      if (range.segments.front().lr != 0) TakeLocalStep(range, stream);
      if (range.rank_step == RankStep::kJoin && range.local_rates > 0) Join(range, stream);
      return MakeWeights(range, stream);
  }
}

void ZeroOneAdamRule::StepWithMomentum(const UpdateRange& range, float grad_scale, bool decays,
                                       const Tensor& weights, const Tensor& copy,
                                       const Stream& stream) const {
  ops::AdamWOptions options = options_;
  options.grad_scale = grad_scale;
  options.beta2 = 1;  // AdamW changes the first moment alone
  const Segments segments =
      decays ? Segments(range.segments.begin(), range.segments.end()) : WithoutDecay(range);
  ops::AdamWUpdate(stream, options, segments, range.gradients, range.states[kMomentum],
                   range.states[kSecondMoment], weights, copy);
}

void ZeroOneAdamRule::TakeLocalStep(const UpdateRange& range, const Stream& stream) const {
  ops::ZeroWhereZero(stream, range.states[kSecondMoment], range.gradients);
  StepWithMomentum(range, range.grad_scale, /*decays=*/false, range.states[kLocalSteps],
                   /*copy=*/Tensor(), stream);
  for (const ops::OptimizerSegment& segment : range.segments) {
    if (segment.weight_decay == 0) continue;
    ops::Scale(stream, static_cast<float>(1 - double{segment.lr} * segment.weight_decay),
               range.masters.Slice(0, segment.begin, segment.end));
  }
}

void ZeroOneAdamRule::Join(const UpdateRange& range, const Stream& stream) const {
  const Tensor &m = range.states[kMomentum], &v = range.states[kSecondMoment],
               &steps = range.states[kLocalSteps];
  ops::MultiplyByRoot(stream, options_.epsilon, v, steps);
  range.average->Average(*range.bucket, steps, stream);
  ops::ZeroWhereZero(stream, v, steps);
  // With betas of 1 and a rate of -1, AdamW adds a momentum over the root, here that of `steps`.
  ops::AdamWOptions options = options_;
  options.beta1 = options.beta2 = 1;
  const float added = -1;
  ops::AdamWUpdate(stream, options, WithoutDecay(range, &added), range.gradients, steps, v,
                   range.masters, /*out_N=*/Tensor());
  ops::Copy(stream, steps, m);
  ops::Scale(stream, static_cast<float>(-1 / range.local_rates), m);
  ops::Zero(stream, steps);
}

void ZeroOneAdamRule::MakeWeights(const UpdateRange& range, const Stream& stream) const {
  ops::Sum(stream, range.masters, range.states[kLocalSteps], range.weights);
}

}  // namespace megatron
