#include "megatron/optim/outer/outer_step.h"

#include "megatron/ops/elementwise.h"

namespace megatron {

void TakeOuterStep(const Stream& stream, const OuterStepOptions& options, const Tensor& gradient,
                   const Tensor& momentum, const Tensor& change, const Tensor& global) {
  if (options.momentum == 0) {
    ops::Copy(stream, gradient, change);
  } else {
    const float factor = static_cast<float>(options.momentum);
    ops::Scale(stream, factor, momentum);
    ops::Add(stream, gradient, momentum);
    ops::Copy(stream, momentum, change);
    if (options.nesterov) {
      ops::Scale(stream, factor, change);
      ops::Add(stream, gradient, change);
    }
  }
  ops::Scale(stream, static_cast<float>(-options.lr), change);
  ops::Add(stream, change, global);
}

}  // namespace megatron
