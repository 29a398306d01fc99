// The gradient of a bias, for layers whose matrix products do not compute it.
#ifndef MEGATRON_OPS_BIAS_GRADIENT_H_
#define MEGATRON_OPS_BIAS_GRADIENT_H_

#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron::ops {

// dbias (fp32) += column sums of dy (fp32, bf16 or fp16; contiguous). Legend: T tokens, O features.
void BiasBackward(const Stream& stream, const Tensor& dy_TO, const Tensor& dbias_O);

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_BIAS_GRADIENT_H_
