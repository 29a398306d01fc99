// A rule whose updates come one step late. Its elements have one more state, the gradients of the
// last step, which the optimizer keeps: Update gets them as gradients and not among the states.
#ifndef MEGATRON_OPTIM_RULES_DELAYED_RULE_H_
#define MEGATRON_OPTIM_RULES_DELAYED_RULE_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "glog/logging.h"
#include "megatron/optim/rules/update_rule.h"
#include "megatron/tensor/dtype.h"

namespace megatron {

class DelayedRule : public UpdateRule {
 public:
  // `rule` updates ranges of elements and keeps no numbers. `gradients` is the type of gradients.
  DelayedRule(std::unique_ptr<const UpdateRule> rule, DType gradients)
      : rule_(std::move(rule)), gradients_(gradients) {
    CHECK(rule_->unit() == ShardUnit::kElement && !rule_->averages_over_ranks() &&
          rule_->numbers().empty())
        << rule_->name();
  }

  std::string name() const override { return rule_->name(); }
  std::vector<OptimizerState> states() const override {
    std::vector<OptimizerState> states = rule_->states();
    states.push_back({kDelayedGradient, gradients_});
    states.back().is_delayed_gradient = true;
    return states;
  }
  void Update(const UpdateRange& range, const Stream& stream) const override {
    rule_->Update(range, stream);
  }

 private:
  const std::unique_ptr<const UpdateRule> rule_;
  const DType gradients_;
};

}  // namespace megatron

#endif  // MEGATRON_OPTIM_RULES_DELAYED_RULE_H_
