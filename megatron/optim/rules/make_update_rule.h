// The choice of an update rule.
#ifndef MEGATRON_OPTIM_RULES_MAKE_UPDATE_RULE_H_
#define MEGATRON_OPTIM_RULES_MAKE_UPDATE_RULE_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "megatron/optim/rules/muon_rule.h"
#include "megatron/optim/rules/one_bit_lamb_rule.h"
#include "megatron/optim/rules/update_rule.h"
#include "megatron/optim/rules/zero_one_schedule.h"
#include "megatron/tensor/dtype.h"

namespace megatron {

struct OptimizerOptions {
  enum Kind { kAdamW, kSgd, kLion, kMuon, kLamb, kOneBitAdam, kZeroOneAdam, kOneBitLamb };
  Kind kind = kAdamW;
  // Those of LAMB, of the optimizers that average by signs, and of AdamW beside Muon, too.
  double adam_beta1 = 0.9, adam_beta2 = 0.999, adam_epsilon = 1e-8;
  // The types in which AdamW's moments are kept: fp32, bf16 or kUInt8 (AdamWRule).
  DType exp_avg_dtype = DType::kFloat32, exp_avg_sq_dtype = DType::kFloat32;
  // Whether AdamW keeps masters as remainders of weights in bf16.
  bool store_param_remainders = false;
  double sgd_momentum = 0.9;
  double lion_beta1 = 0.9, lion_beta2 = 0.99;
  MuonOptions muon;
  double lamb_min_coeff = 0.01, lamb_max_coeff = 10;
  int64_t one_bit_adam_freeze_step = 100000;
  OneBitLambOptions one_bit_lamb;
  ZeroOneSchedule zero_one;
  // The type of gradients whose updates come one step late (DelayedRule); not set: none do. With
  // AdamW, SGD and Lion.
  std::optional<DType> delayed_gradients;
};

std::unique_ptr<UpdateRule> MakeUpdateRule(const OptimizerOptions& options);

}  // namespace megatron

#endif  // MEGATRON_OPTIM_RULES_MAKE_UPDATE_RULE_H_
