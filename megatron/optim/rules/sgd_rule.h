// Stochastic gradient descent with momentum, as torch.optim.SGD does it.
#ifndef MEGATRON_OPTIM_RULES_SGD_RULE_H_
#define MEGATRON_OPTIM_RULES_SGD_RULE_H_

#include <string>
#include <vector>

#include "megatron/optim/rules/update_rule.h"

namespace megatron {

class SgdRule : public UpdateRule {
 public:
  explicit SgdRule(double momentum) { options_.momentum = static_cast<float>(momentum); }

  std::string name() const override { return "sgd"; }

  // Without momentum there is no state.
  std::vector<OptimizerState> states() const override {
    if (options_.momentum == 0) return {};
    OptimizerState buffer = {"momentum_buffer"};
    buffer.former_name = "exp_avg";
    return {buffer};
  }

  void Update(const UpdateRange& range, const Stream& stream) const override {
    ops::SgdOptions options = options_;
    options.grad_scale = range.grad_scale;
    ops::SgdUpdate(stream, options, range.segments, range.gradients,
                   range.states.empty() ? Tensor() : range.states[0], range.masters, range.weights);
  }

 private:
  ops::SgdOptions options_;
};

}  // namespace megatron

#endif  // MEGATRON_OPTIM_RULES_SGD_RULE_H_
