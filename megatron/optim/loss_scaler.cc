#include "megatron/optim/loss_scaler.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace megatron {

LossScaler LossScaler::MakeConstant(double scale) {
  LossScalerState state;
  state.scale = scale;
  return LossScaler(/*dynamic=*/false, {}, state);
}

absl::StatusOr<LossScaler> LossScaler::CreateDynamic(const DynamicLossScaleOptions& options) {
  std::vector<std::string> problems;
  if (!(options.min_scale > 0 && options.initial_scale >= options.min_scale &&
        std::isfinite(options.initial_scale))) {
    problems.push_back(absl::StrCat("initial_loss_scale ", options.initial_scale,
                                    " and min_loss_scale ", options.min_scale,
                                    " are not 0 < min <= initial"));
  }
  if (options.window <= 0) {
    problems.push_back(absl::StrCat("loss_scale_window ", options.window, " is not positive"));
  }
  if (options.hysteresis <= 0) {
    problems.push_back(absl::StrCat("hysteresis ", options.hysteresis, " is not positive"));
  }
  if (!(options.growth_factor > 1)) {
    problems.push_back(absl::StrCat("growth factor ", options.growth_factor, " is not above 1"));
  }
  if (!(options.backoff_factor > 0 && options.backoff_factor < 1)) {
    problems.push_back(
        absl::StrCat("backoff factor ", options.backoff_factor, " is not in (0, 1)"));
  }
  if (!problems.empty()) return absl::InvalidArgumentError(absl::StrJoin(problems, "; "));
  LossScalerState state;
  state.scale = options.initial_scale;
  state.hysteresis_left = options.hysteresis;
  return LossScaler(/*dynamic=*/true, options, state);
}

void LossScaler::Update(bool found_non_finite) {
  if (!dynamic_) return;
  if (found_non_finite) {
    state_.clean_steps = 0;
    if (--state_.hysteresis_left <= 0) {
      state_.scale = std::max(state_.scale * options_.backoff_factor, options_.min_scale);
    }
    return;
  }
  if (++state_.clean_steps < options_.window) return;
  state_.clean_steps = 0;
  state_.hysteresis_left = options_.hysteresis;
  state_.scale *= options_.growth_factor;
}

void LossScaler::set_state(const LossScalerState& state) {
  if (dynamic_) state_ = state;
}

}  // namespace megatron
