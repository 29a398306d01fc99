// 1-bit LAMB (C. Li et al., arXiv 2104.06069).
#ifndef MEGATRON_OPTIM_RULES_ONE_BIT_LAMB_RULE_H_
#define MEGATRON_OPTIM_RULES_ONE_BIT_LAMB_RULE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "megatron/optim/rules/update_rule.h"

namespace megatron {

struct OneBitLambOptions {
  int64_t freeze_step = 100000;
  double min_coeff = 0.01, max_coeff = 10;
  double coeff_beta = 0.9;
  double factor_max = 4, factor_min = 0.5, factor_threshold = 0.1;
};

// LAMB without the correction of its moments, for each tensor w up to step freeze_step:
//   m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2; u = m / (sqrt(v) + epsilon) + decay * w
//   c = ‖w‖ / ‖u‖ within [min_coeff, max_coeff], or 1 if a norm is 0
//   w = w - lr * c * u; C = coeff_beta * C + (1 - coeff_beta) * c, unless c is 1
//
// From that step on, v stays, and gradients are the ranks' own. Once, s = 1 / rms(m) and f = v.
//   n = the average by signs of s * (b1 m + (1 - b1) g), over s; 0 where v is 0
//   f = b2 f + (1 - b2) ((n - b1 m) / (1 - b1))^2; m = n
//   p = m / (sqrt(v) + epsilon); u = p + decay * w; r = min(1, ‖p‖ / ‖u‖)
//   F = r * max((sqrt(v) + epsilon) / (sqrt(f) + epsilon)) + 1 - r, within [factor_min, factor_max]
//       and within factor_threshold of what it was, which is 1 at first
//   w = w - lr * C * F * u, with 1 in the place of C if no c has entered it
// The maximum is that of elements whose v is not 0. With s, momenta are of one size and can share
// one scale of signs. A fused weight is one tensor; norms are those of all its parts on
// tensor-parallel ranks.
class OneBitLambRule : public UpdateRule {
 public:
  OneBitLambRule(double beta1, double beta2, double epsilon, const OneBitLambOptions& options);

  std::string name() const override { return "onebit_lamb"; }
  std::vector<OptimizerState> states() const override {
    return {{"exp_avg"}, {"exp_avg_sq"}, {"exp_avg_sq_fresh"}};
  }
  // C, F and s; an s of 0 is not there yet.
  std::vector<ParameterNumber> numbers() const override {
    return {{"lamb_coeff_freeze", 0}, {"last_factor", 1}, {"scaling_coeff", 0}};
  }
  bool averages_over_ranks() const override { return true; }
  RankStep StepAfter(int64_t steps) const override {
    return steps < options_.freeze_step ? RankStep::kSum : RankStep::kMean;
  }
  void Update(const UpdateRange& range, const Stream& stream) const override;

 private:
  struct OneTensor;
  static OneTensor TensorOf(const UpdateRange& range, size_t index);

  // Makes averages of the ranks' own gradients.
  void AverageMomentum(const UpdateRange& range, const Stream& stream) const;
  // Sets s and f.
  void StartCompression(const UpdateRange& range, const OneTensor& tensor,
                        const Stream& stream) const;
  void UpdateTensor(const UpdateRange& range, const OneTensor& tensor, const Stream& stream) const;
  // Return the factor of `lr * u` in a step with these norms, and keep C or F.
  double WarmUpCoefficient(double weight_norm, double step_norm, float* numbers) const;
  double FrozenCoefficient(double momentum_norm, double step_norm, double ratio,
                           float* numbers) const;

  ops::AdamWOptions adamw_;
  const OneBitLambOptions options_;
};

}  // namespace megatron

#endif  // MEGATRON_OPTIM_RULES_ONE_BIT_LAMB_RULE_H_
