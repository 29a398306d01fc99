// The loss scale: a factor that keeps small fp16 gradients from underflowing to zero.
//
// The loss is multiplied by scale() before backward and the gradients are divided by it before the
// update. A *dynamic* scale follows the gradients: it halves when they overflow and doubles after a
// window of steps without overflow. It halves only at the hysteresis-th overflow since it last
// grew, and then at each further one until it grows again, so rare overflows cost only their step.
// A *constant* scale never changes.
//
// P. Micikevicius et al., "Mixed precision training", arXiv 1710.03740; the hysteresis is
// Megatron's.
#ifndef MEGATRON_OPTIM_LOSS_SCALER_H_
#define MEGATRON_OPTIM_LOSS_SCALER_H_

#include <cstdint>

#include "absl/status/statusor.h"

namespace megatron {

struct DynamicLossScaleOptions {
  double initial_scale = 4294967296.0;
  double min_scale = 1;
  int64_t window = 1000;  // steps without overflow after which the scale grows
  int64_t hysteresis = 2;
  double growth_factor = 2;
  double backoff_factor = 0.5;
};

// The scaler's state, which is part of a checkpoint.
struct LossScalerState {
  double scale = 1;
  int64_t clean_steps = 0;      // steps without overflow since the last overflow or growth
  int64_t hysteresis_left = 0;  // overflows until the scale halves; at 0 or less each one halves it
};

class LossScaler {
 public:
  static LossScaler MakeConstant(double scale);
  // Returns InvalidArgument that names every rule the options break.
  static absl::StatusOr<LossScaler> CreateDynamic(const DynamicLossScaleOptions& options);

  float scale() const { return static_cast<float>(state_.scale); }
  // Updates the scale once a step, when it is known whether a gradient of any rank was infinite or
  // NaN.
  void Update(bool found_non_finite);

  const LossScalerState& state() const { return state_; }
  // Sets the state, without effect on a constant scale.
  void set_state(const LossScalerState& state);

 private:
  LossScaler(bool dynamic, const DynamicLossScaleOptions& options, const LossScalerState& state)
      : dynamic_(dynamic), options_(options), state_(state) {}

  bool dynamic_;
  DynamicLossScaleOptions options_;
  LossScalerState state_;
};

}  // namespace megatron

#endif  // MEGATRON_OPTIM_LOSS_SCALER_H_
