// AdamW (I. Loshchilov, F. Hutter, arXiv 1711.05101).
#ifndef MEGATRON_OPTIM_RULES_ADAMW_RULE_H_
#define MEGATRON_OPTIM_RULES_ADAMW_RULE_H_

#include <string>
#include <vector>

#include "megatron/optim/rules/update_rule.h"
#include "megatron/tensor/dtype.h"

namespace megatron {

class AdamWRule : public UpdateRule {
 public:
  // The moments' types are fp32, bf16 or kUInt8, which stands for 8-bit floats (AdamWUpdate). With
  // `keeps_remainders` a state holds what masters have besides the weights, which are bf16.
  AdamWRule(double beta1, double beta2, double epsilon, DType exp_avg, DType exp_avg_sq,
            bool keeps_remainders = false)
      : exp_avg_(exp_avg), exp_avg_sq_(exp_avg_sq), keeps_remainders_(keeps_remainders) {
    options_.beta1 = beta1;
    options_.beta2 = beta2;
    options_.epsilon = static_cast<float>(epsilon);
  }

  std::string name() const override { return "adam"; }
  std::vector<OptimizerState> states() const override {
    std::vector<OptimizerState> states = {{"exp_avg", exp_avg_}, {"exp_avg_sq", exp_avg_sq_}};
    if (keeps_remainders_) {
      states.push_back({kMasterRemainder, DType::kUInt16});
      states.back().is_remainder = true;
    }
    return states;
  }

  void Update(const UpdateRange& range, const Stream& stream) const override {
    ops::AdamWOptions options = options_;
    options.step = range.step;
    options.grad_scale = range.grad_scale;
    ops::AdamWUpdate(stream, options, range.segments, range.gradients, range.states[0],
                     range.states[1], keeps_remainders_ ? range.states[2] : range.masters,
                     keeps_remainders_ ? range.masters : range.weights);
  }

 private:
  ops::AdamWOptions options_;
  const DType exp_avg_, exp_avg_sq_;
  const bool keeps_remainders_;
};

}  // namespace megatron

#endif  // MEGATRON_OPTIM_RULES_ADAMW_RULE_H_
