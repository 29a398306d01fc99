#include "megatron/optim/lr_scheduler.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace megatron {
namespace {

// Falls from 1 at 0 to 0 at 1.
double FallingHalfWave(double x) { return 0.5 * (std::cos(M_PI * x) + 1); }

double WsdCoefficient(const OptimizerParamSchedule& schedule, int64_t step) {
  const int64_t stable_end = schedule.lr_decay_steps - schedule.wsd_decay_steps;
  if (step <= stable_end) return 1;
  const double share = static_cast<double>(step - stable_end) / schedule.wsd_decay_steps;
  switch (schedule.wsd_decay_style) {
    case WsdDecayStyle::kExponential:
      return 2 * std::pow(0.5, share) - 1;
    case WsdDecayStyle::kLinear:
      return 1 - share;
    case WsdDecayStyle::kCosine:
      return FallingHalfWave(share);
    case WsdDecayStyle::kMinusSqrt:
      return 1 - std::sqrt(share);
  }
  return 1;
}

double DecayCoefficient(const OptimizerParamSchedule& schedule, int64_t step) {
  const double share = static_cast<double>(step - schedule.lr_warmup_steps) /
                       (schedule.lr_decay_steps - schedule.lr_warmup_steps);
  switch (schedule.lr_decay_style) {
    case LrDecayStyle::kLinear:
      return 1 - share;
    case LrDecayStyle::kCosine:
      return FallingHalfWave(share);
    case LrDecayStyle::kWsd:
      return WsdCoefficient(schedule, step);
    case LrDecayStyle::kConstant:
    case LrDecayStyle::kInverseSquareRoot:
      break;
  }
  return 1;
}

void CheckLearningRate(const OptimizerParamSchedule& schedule, std::vector<std::string>* problems) {
  const bool decays = schedule.lr_decay_style != LrDecayStyle::kConstant;
  // The condition is negated, so that NaN is refused too.
  if (!(schedule.max_lr > 0 && std::isfinite(schedule.max_lr))) {
    problems->push_back(absl::StrCat("lr ", schedule.max_lr, " is not positive and finite"));
  }
  if (!(schedule.min_lr >= 0 && schedule.min_lr <= schedule.max_lr)) {
    problems->push_back(
        absl::StrCat("min_lr ", schedule.min_lr, " is not in [0, lr = ", schedule.max_lr, "]"));
  }
  if (schedule.decoupled_max_lr &&
      !(*schedule.decoupled_max_lr > 0 && std::isfinite(*schedule.decoupled_max_lr) &&
        schedule.decoupled_min_lr >= 0 &&
        schedule.decoupled_min_lr <= *schedule.decoupled_max_lr)) {
    problems->push_back(absl::StrCat("decoupled rates from ", *schedule.decoupled_max_lr, " to ",
                                     schedule.decoupled_min_lr,
                                     " are not positive and finite and falling"));
  }
  if (!(schedule.init_lr >= 0 && schedule.init_lr <= schedule.max_lr)) {
    problems->push_back(absl::StrCat("lr_warmup_init ", schedule.init_lr,
                                     " is not in [0, lr = ", schedule.max_lr, "]"));
  }
  if (schedule.lr_warmup_steps < 0) {
    problems->push_back(absl::StrCat("warm-up of ", schedule.lr_warmup_steps, " samples"));
  }
  if (decays && schedule.lr_decay_steps <= schedule.lr_warmup_steps) {
    problems->push_back(absl::StrCat("the learning rate decays until sample ",
                                     schedule.lr_decay_steps, ", which is not after the warm-up's ",
                                     schedule.lr_warmup_steps));
  }
  if (schedule.lr_decay_style == LrDecayStyle::kWsd &&
      (schedule.wsd_decay_steps <= 0 || schedule.wsd_decay_steps > schedule.lr_decay_steps)) {
    problems->push_back(absl::StrCat("WSD decay over ", schedule.wsd_decay_steps,
                                     " samples is not in [1, ", schedule.lr_decay_steps, "]"));
  }
}

void CheckWeightDecay(const OptimizerParamSchedule& schedule, std::vector<std::string>* problems) {
  if (!(schedule.start_weight_decay >= 0 && std::isfinite(schedule.end_weight_decay) &&
        schedule.end_weight_decay >= schedule.start_weight_decay)) {
    problems->push_back(absl::StrCat("weight decay from ", schedule.start_weight_decay, " to ",
                                     schedule.end_weight_decay, " is not 0 <= start <= end"));
  }
  if (schedule.weight_decay_style == WeightDecayStyle::kConstant) {
    if (schedule.start_weight_decay != schedule.end_weight_decay) {
      problems->push_back(absl::StrCat("a constant weight decay starts at ",
                                       schedule.start_weight_decay, " and ends at ",
                                       schedule.end_weight_decay));
    }
  } else if (schedule.weight_decay_steps <= 0) {
    problems->push_back(
        absl::StrCat("weight decay changes over ", schedule.weight_decay_steps, " samples"));
  }
}

}  // namespace

double LearningRate(const OptimizerParamSchedule& schedule, int64_t step) {
  const double range = schedule.max_lr - schedule.min_lr;
  if (schedule.lr_warmup_steps > 0 && step <= schedule.lr_warmup_steps) {
    return schedule.init_lr + (schedule.max_lr - schedule.init_lr) * static_cast<double>(step) /
                                  static_cast<double>(schedule.lr_warmup_steps);
  }
  if (schedule.lr_decay_style == LrDecayStyle::kConstant) return schedule.max_lr;
  if (step > schedule.lr_decay_steps) return schedule.min_lr;
  if (schedule.lr_decay_style == LrDecayStyle::kInverseSquareRoot) {
    const double warmup = std::max<int64_t>(schedule.lr_warmup_steps, 1);
    const double lr = schedule.max_lr * std::sqrt(warmup) / std::sqrt(std::max<int64_t>(step, 1));
    return std::max(schedule.min_lr, lr);
  }
  return schedule.min_lr + DecayCoefficient(schedule, step) * range;
}

std::optional<double> DecoupledLearningRate(const OptimizerParamSchedule& schedule, int64_t step) {
  if (!schedule.decoupled_max_lr) return std::nullopt;
  OptimizerParamSchedule decoupled = schedule;
  decoupled.max_lr = *schedule.decoupled_max_lr;
  decoupled.min_lr = schedule.decoupled_min_lr;
  return LearningRate(decoupled, step);
}

double ScaledLearningRate(const OptimizerParamSchedule& schedule, int64_t step) {
  OptimizerParamSchedule scaled = schedule;
  scaled.max_lr *= schedule.scaled_lr_factor;
  scaled.min_lr *= schedule.scaled_lr_factor;
  return LearningRate(scaled, step);
}

double WeightDecay(const OptimizerParamSchedule& schedule, int64_t step) {
  if (schedule.weight_decay_style == WeightDecayStyle::kConstant ||
      step > schedule.weight_decay_steps) {
    return schedule.end_weight_decay;
  }
  const double share = static_cast<double>(step) / schedule.weight_decay_steps;
  const bool linear = schedule.weight_decay_style == WeightDecayStyle::kLinear;
  const double coefficient = linear ? share : FallingHalfWave(1 - share);
  return schedule.start_weight_decay +
         coefficient * (schedule.end_weight_decay - schedule.start_weight_decay);
}

absl::Status Validate(const OptimizerParamSchedule& schedule) {
  std::vector<std::string> problems;
  CheckLearningRate(schedule, &problems);
  CheckWeightDecay(schedule, &problems);
  if (problems.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrJoin(problems, "; "));
}

absl::StatusOr<OptimizerParamScheduler> OptimizerParamScheduler::Create(
    const OptimizerParamSchedule& schedule) {
  if (absl::Status status = Validate(schedule); !status.ok()) return status;
  return OptimizerParamScheduler(schedule);
}

}  // namespace megatron
