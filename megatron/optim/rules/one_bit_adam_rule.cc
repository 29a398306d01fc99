#include "megatron/optim/rules/one_bit_adam_rule.h"

#include "megatron/ops/compression/sign_codes.h"

namespace megatron {

OneBitAdamRule::OneBitAdamRule(double beta1, double beta2, double epsilon, int64_t freeze_step)
    : freeze_step_(freeze_step) {
  options_.beta1 = beta1;
  options_.beta2 = beta2;
  options_.epsilon = static_cast<float>(epsilon);
  options_.bias_correction = false;
}

void OneBitAdamRule::Update(const UpdateRange& range, const Stream& stream) const {
  const Tensor &m = range.states[0], &v = range.states[1];
  ops::AdamWOptions options = options_;
  options.step = range.step;
  options.grad_scale = range.grad_scale;
  if (range.rank_step == RankStep::kSum) {
    ops::AdamWUpdate(stream, options, range.segments, range.gradients, m, v, range.masters,
                     range.weights);
    return;
  }
  // With a beta2 of 1 and a rate of 0, AdamW changes the first moment alone; with a beta1 of 1 too,
  // it changes weights alone.
  options.beta2 = 1;
  absl::InlinedVector<ops::OptimizerSegment, 16> resting(range.segments.begin(),
                                                         range.segments.end());
  for (ops::OptimizerSegment& segment : resting) segment.lr = 0;
  ops::AdamWUpdate(stream, options, resting, range.gradients, m, v, range.masters,
                   /*out_N=*/Tensor());
  range.average->Average(*range.bucket, m, stream);
  ops::ZeroWhereZero(stream, v, m);
  options.beta1 = 1;
  ops::AdamWUpdate(stream, options, range.segments, range.gradients, m, v, range.masters,
                   range.weights);
}

}  // namespace megatron
