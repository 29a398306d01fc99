// The gradients of a linear layer's parameters, of which some may be frozen.
#ifndef MEGATRON_LAYERS_LINEAR_GRADIENTS_H_
#define MEGATRON_LAYERS_LINEAR_GRADIENTS_H_

#include "megatron/ops/bias_gradient.h"
#include "megatron/ops/linear.h"
#include "megatron/tensor/parameter.h"
#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

// Adds the gradient of the weight, if it is trained, and the column sums of dy to dbias, unless it
// is empty, as that of a frozen bias is.
inline void AddLinearGradients(const Stream& stream, const Tensor& dy_TO, const Tensor& x_TI,
                               const Parameter& weight, const Tensor& dbias_O) {
  if (!weight.frozen) {
    ops::LinearBackwardWeight(stream, dy_TO, x_TI, weight.grad, dbias_O);
  } else if (!dbias_O.empty()) {
    ops::BiasBackward(stream, dy_TO, dbias_O);
  }
}

}  // namespace megatron

#endif  // MEGATRON_LAYERS_LINEAR_GRADIENTS_H_
