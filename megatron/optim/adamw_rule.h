// AdamW (I. Loshchilov, F. Hutter, arXiv 1711.05101).
#ifndef MEGATRON_OPTIM_ADAMW_RULE_H_
#define MEGATRON_OPTIM_ADAMW_RULE_H_

#include <string>
#include <vector>

#include "megatron/optim/update_rule.h"
#include "megatron/tensor/dtype.h"

namespace megatron {

class AdamWRule : public UpdateRule {
 public:
  // The moments' types are fp32, bf16 or kUInt8, which stands for 8-bit floats (AdamWUpdate).
  AdamWRule(double beta1, double beta2, double epsilon, DType exp_avg, DType exp_avg_sq)
      : exp_avg_(exp_avg), exp_avg_sq_(exp_avg_sq) {
    options_.beta1 = beta1;
    options_.beta2 = beta2;
    options_.epsilon = static_cast<float>(epsilon);
  }

  std::string name() const override { return "adam"; }
  std::vector<OptimizerState> states() const override {
    return {{"exp_avg", exp_avg_}, {"exp_avg_sq", exp_avg_sq_}};
  }

  void Update(const UpdateRange& range, const Stream& stream) const override {
    ops::AdamWOptions options = options_;
    options.step = range.step;
    options.grad_scale = range.grad_scale;
    ops::AdamWUpdate(stream, options, range.segments, range.gradients, range.states[0],
                     range.states[1], range.masters, range.weights);
  }

 private:
  ops::AdamWOptions options_;
  const DType exp_avg_, exp_avg_sq_;
};

}  // namespace megatron

#endif  // MEGATRON_OPTIM_ADAMW_RULE_H_
