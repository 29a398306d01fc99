// PendingUpdate: an update that comes after the passes of the step behind its own. Its gradients
// are a state of the optimizer (OptimizerState::is_delayed_gradient).
#ifndef MEGATRON_OPTIM_PENDING_UPDATE_H_
#define MEGATRON_OPTIM_PENDING_UPDATE_H_

#include <optional>

namespace megatron {

// What its own step had besides gradients.
struct PendingUpdate {
  bool exists = false;
  double lr = 0, scaled_lr = 0, weight_decay = 0;  // StepOptions'
  std::optional<double> decoupled_lr;              // likewise
  double grad_scale = 0;  // the factor on the gradients: unscaling and clipping
};

}  // namespace megatron

#endif  // MEGATRON_OPTIM_PENDING_UPDATE_H_
