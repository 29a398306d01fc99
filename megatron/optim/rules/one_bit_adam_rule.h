// 1-bit Adam (H. Tang et al., arXiv 2102.02888).
#ifndef MEGATRON_OPTIM_RULES_ONE_BIT_ADAM_RULE_H_
#define MEGATRON_OPTIM_RULES_ONE_BIT_ADAM_RULE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "megatron/optim/rules/update_rule.h"
#include "megatron/tensor/dtype.h"

namespace megatron {

// Adam without the correction of its moments, with decoupled decay:
//   m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2
//   w = w - lr * decay * w - lr * m / (sqrt(v) + epsilon)
// From step `freeze_step` on, g is the rank's own, v stays what it is, and m is averaged over ranks
// before it is used. An element whose v is 0 has never had a gradient; its m is then 0, since an
// average by signs is never 0, and would be divided by epsilon.
class OneBitAdamRule : public UpdateRule {
 public:
  OneBitAdamRule(double beta1, double beta2, double epsilon, int64_t freeze_step);

  std::string name() const override { return "onebit_adam"; }
  std::vector<OptimizerState> states() const override {
    return {{"exp_avg", DType::kFloat32}, {"exp_avg_sq", DType::kFloat32}};
  }
  bool averages_over_ranks() const override { return true; }
  RankStep StepAfter(int64_t steps) const override {
    return steps < freeze_step_ ? RankStep::kSum : RankStep::kMean;
  }
  void Update(const UpdateRange& range, const Stream& stream) const override;

 private:
  ops::AdamWOptions options_;
  const int64_t freeze_step_;
};

}  // namespace megatron

#endif  // MEGATRON_OPTIM_RULES_ONE_BIT_ADAM_RULE_H_
