// The conjugate pair of operators between replicated activations and the tensor-parallel region.
//
// Copy is the identity forward and sums gradients backward; Reduce sums partial results forward and
// is the identity backward (M. Shoeybi et al., "Megatron-LM", arXiv 1909.08053, f and g). With one
// tensor-parallel rank both do nothing.
#ifndef MEGATRON_LAYERS_TENSOR_PARALLEL_H_
#define MEGATRON_LAYERS_TENSOR_PARALLEL_H_

#include "megatron/layers/layer_context.h"

namespace megatron {

inline void CopyBackward(const LayerContext& ctx, const Tensor& dx) {
  ctx.tensor_group.AllReduce(dx, ReduceOp::kSum, ctx.stream);
}
inline void ReduceForward(const LayerContext& ctx, const Tensor& y) {
  ctx.tensor_group.AllReduce(y, ReduceOp::kSum, ctx.stream);
}

}  // namespace megatron

#endif  // MEGATRON_LAYERS_TENSOR_PARALLEL_H_
