// Lion (X. Chen et al., "Symbolic discovery of optimization algorithms", arXiv 2302.06675).
#ifndef MEGATRON_OPTIM_RULES_LION_RULE_H_
#define MEGATRON_OPTIM_RULES_LION_RULE_H_

#include <string>
#include <vector>

#include "megatron/optim/rules/update_rule.h"

namespace megatron {

class LionRule : public UpdateRule {
 public:
  LionRule(double beta1, double beta2) {
    options_.beta1 = beta1;
    options_.beta2 = beta2;
  }

  std::string name() const override { return "lion"; }
  std::vector<OptimizerState> states() const override { return {{"exp_avg"}}; }

  void Update(const UpdateRange& range, const Stream& stream) const override {
    ops::LionOptions options = options_;
    options.grad_scale = range.grad_scale;
    ops::LionUpdate(stream, options, range.segments, range.gradients, range.states[0],
                    range.masters, range.weights);
  }

 private:
  ops::LionOptions options_;
};

}  // namespace megatron

#endif  // MEGATRON_OPTIM_RULES_LION_RULE_H_
