// The memory for a parameter's gradient, for ops that compute the gradients of all their parameters
// at once.
#ifndef MEGATRON_LAYERS_PARAMETER_GRADIENT_H_
#define MEGATRON_LAYERS_PARAMETER_GRADIENT_H_

#include "megatron/layers/layer_context.h"
#include "megatron/ops/elementwise.h"
#include "megatron/tensor/parameter.h"

namespace megatron {

// Returns the gradient of the parameter or, if it is frozen and has none, memory of ctx.scratch
// that nobody reads.
inline Tensor GradientOf(const LayerContext& ctx, const Parameter& parameter) {
  if (!parameter.frozen) return parameter.grad;
  const Tensor unread = ctx.scratch->Allocate(DType::kFloat32, parameter.sharding.local_shape,
                                              "gradient of a frozen parameter");
  ops::Zero(ctx.stream, unread);
  return unread;
}

}  // namespace megatron

#endif  // MEGATRON_LAYERS_PARAMETER_GRADIENT_H_
