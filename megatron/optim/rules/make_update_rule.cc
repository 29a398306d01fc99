#include "megatron/optim/rules/make_update_rule.h"

#include <utility>

#include "glog/logging.h"
#include "megatron/optim/rules/adamw_rule.h"
#include "megatron/optim/rules/delayed_rule.h"
#include "megatron/optim/rules/lamb_rule.h"
#include "megatron/optim/rules/lion_rule.h"
#include "megatron/optim/rules/one_bit_adam_rule.h"
#include "megatron/optim/rules/sgd_rule.h"
#include "megatron/optim/rules/zero_one_adam_rule.h"

namespace megatron {
namespace {

std::unique_ptr<UpdateRule> MakePromptRule(const OptimizerOptions& options) {
  const AdamWRule adamw(options.adam_beta1, options.adam_beta2, options.adam_epsilon,
                        options.exp_avg_dtype, options.exp_avg_sq_dtype);
  switch (options.kind) {
    case OptimizerOptions::kAdamW:
      return std::make_unique<AdamWRule>(options.adam_beta1, options.adam_beta2,
                                         options.adam_epsilon, options.exp_avg_dtype,
                                         options.exp_avg_sq_dtype, options.store_param_remainders);
    case OptimizerOptions::kSgd:
      return std::make_unique<SgdRule>(options.sgd_momentum);
    case OptimizerOptions::kLion:
      return std::make_unique<LionRule>(options.lion_beta1, options.lion_beta2);
    case OptimizerOptions::kMuon:
      return std::make_unique<MuonRule>(options.muon, adamw);
    case OptimizerOptions::kLamb:
      return std::make_unique<LambRule>(options.adam_beta1, options.adam_beta2,
                                        options.adam_epsilon, options.lamb_min_coeff,
                                        options.lamb_max_coeff);
    case OptimizerOptions::kOneBitAdam:
      return std::make_unique<OneBitAdamRule>(options.adam_beta1, options.adam_beta2,
                                              options.adam_epsilon,
                                              options.one_bit_adam_freeze_step);
    case OptimizerOptions::kZeroOneAdam:
      return std::make_unique<ZeroOneAdamRule>(options.adam_beta1, options.adam_beta2,
                                               options.adam_epsilon, options.zero_one);
    case OptimizerOptions::kOneBitLamb:
      return std::make_unique<OneBitLambRule>(options.adam_beta1, options.adam_beta2,
                                              options.adam_epsilon, options.one_bit_lamb);
  }
  LOG(FATAL) << "optimizer kind " << options.kind;
  return nullptr;
}

}  // namespace

std::unique_ptr<UpdateRule> MakeUpdateRule(const OptimizerOptions& options) {
  std::unique_ptr<UpdateRule> rule = MakePromptRule(options);
  if (!options.delayed_gradients.has_value()) return rule;
  return std::make_unique<DelayedRule>(std::move(rule), *options.delayed_gradients);
}

}  // namespace megatron
