// The choice of an update rule.
#ifndef MEGATRON_OPTIM_MAKE_UPDATE_RULE_H_
#define MEGATRON_OPTIM_MAKE_UPDATE_RULE_H_

#include <memory>

#include "megatron/optim/update_rule.h"

namespace megatron {

struct OptimizerOptions {
  enum Kind { kAdamW, kSgd };
  Kind kind = kAdamW;
  double adam_beta1 = 0.9, adam_beta2 = 0.999, adam_epsilon = 1e-8;
  double sgd_momentum = 0.9;
};

std::unique_ptr<UpdateRule> MakeUpdateRule(const OptimizerOptions& options);

}  // namespace megatron

#endif  // MEGATRON_OPTIM_MAKE_UPDATE_RULE_H_
