// 0/1 Adam (Y. Lu et al., arXiv 2202.06009).
#ifndef MEGATRON_OPTIM_RULES_ZERO_ONE_ADAM_RULE_H_
#define MEGATRON_OPTIM_RULES_ZERO_ONE_ADAM_RULE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "megatron/optim/rules/update_rule.h"
#include "megatron/optim/rules/zero_one_schedule.h"

namespace megatron {

// Adam without the correction of its moments, with decoupled decay. ZeroOneSchedule says which
// steps are which:
//   kSum           m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2
//                  w = w - lr * decay * w - lr * m / (sqrt(v) + epsilon)
//   kMean          g is the average by signs of the ranks' own; v stays
//   kLocal, kJoin  g is the rank's own, v stays, and a adds up what the rank's own m does:
//                  m = b1 m + (1 - b1) g; a = a - lr * m / (sqrt(v) + epsilon)
//                  w = w - lr * decay * w
//   kJoin          then n is the average by signs of a * (sqrt(v) + epsilon), and
//                  w = w + n / (sqrt(v) + epsilon); m = -n / (the sum of lr); a = 0
// A rank computes with w + a; the masters are w, the same on all ranks. An element whose v is 0 has
// never had a gradient in a step of kSum: it only decays. What averages lack is forgotten after
// var_freeze_step, where they become those of something else. A step of kLocal or kJoin with an lr
// of 0 makes no momentum.
class ZeroOneAdamRule : public UpdateRule {
 public:
  ZeroOneAdamRule(double beta1, double beta2, double epsilon, const ZeroOneSchedule& schedule);

  std::string name() const override { return "zero_one_adam"; }
  std::vector<OptimizerState> states() const override;
  bool averages_over_ranks() const override { return true; }
  RankStep StepAfter(int64_t steps) const override { return schedule_.StepAfter(steps); }
  bool ForgetsErrorsAfter(int64_t steps) const override {
    return steps == schedule_.var_freeze_step;
  }
  void Update(const UpdateRange& range, const Stream& stream) const override;
  void MakeWeights(const UpdateRange& range, const Stream& stream) const override;

 private:
  // Makes momentum of gradients and takes its step from `weights`, whose copy in the model's type
  // is `copy`; v stays.
  void StepWithMomentum(const UpdateRange& range, float grad_scale, bool decays,
                        const Tensor& weights, const Tensor& copy, const Stream& stream) const;
  void TakeLocalStep(const UpdateRange& range, const Stream& stream) const;
  void Join(const UpdateRange& range, const Stream& stream) const;

  ops::AdamWOptions options_;
  const ZeroOneSchedule schedule_;
};

}  // namespace megatron

#endif  // MEGATRON_OPTIM_RULES_ZERO_ONE_ADAM_RULE_H_
