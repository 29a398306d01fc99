// LAMB (Y. You et al., arXiv 1904.00962): AdamW's step, with a length in proportion to the norm of
// the matrix or vector that it changes.
//
//   m = β1 m + (1 - β1) g; v = β2 v + (1 - β2) g²
//   u = (m / (1 - β1^t)) / (√(v / (1 - β2^t)) + ε) + decay * w
//   w = w - lr * ratio * u
// where the ratio is ‖w‖ / ‖u‖ within [min_coeff, max_coeff], or 1 if a norm is 0. A fused weight
// counts as the matrices that it consists of (Parameter::matrix), and the biases of experts as one
// vector for each expert.
#ifndef MEGATRON_OPTIM_RULES_LAMB_RULE_H_
#define MEGATRON_OPTIM_RULES_LAMB_RULE_H_

#include <string>
#include <vector>

#include "megatron/optim/rules/update_rule.h"

namespace megatron {

class LambRule : public UpdateRule {
 public:
  LambRule(double beta1, double beta2, double epsilon, double min_coeff, double max_coeff);

  std::string name() const override { return "lamb"; }
  std::vector<OptimizerState> states() const override { return {{"exp_avg"}, {"exp_avg_sq"}}; }
  ShardUnit unit() const override { return ShardUnit::kParameter; }
  void Update(const UpdateRange& range, const Stream& stream) const override;

 private:
  // Multiplies the step of one matrix or vector by its ratio. `w` and `step` are fp32 and flat.
  void Stretch(const UpdateRange& range, bool is_cut, int replicas, const Tensor& w,
               const Tensor& step, const Stream& stream) const;

  ops::AdamWOptions adamw_;
  const double min_coeff_, max_coeff_;
};

}  // namespace megatron

#endif  // MEGATRON_OPTIM_RULES_LAMB_RULE_H_
