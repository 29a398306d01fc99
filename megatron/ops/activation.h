// Activations that are not fused into a matrix product. Legend: T tokens, F features. fp32, bf16 or
// fp16, contiguous.
#ifndef MEGATRON_OPS_ACTIVATION_H_
#define MEGATRON_OPS_ACTIVATION_H_

#include "megatron/ops/activation_type.h"
#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron::ops {

// y = activation(x); dx = dy * activation'(x). y may be x's memory, dx may be dy's.
void ActivationForward(const Stream& stream, Activation activation, const Tensor& x_TI,
                       const Tensor& y_TI);
void ActivationBackward(const Stream& stream, Activation activation, const Tensor& dy_TI,
                        const Tensor& x_TI, const Tensor& dx_TI);

// gate_up is [T, 2F]: all gates, then all ups. y = activation(gate) * up, which with kSilu is
// SwiGLU (N. Shazeer, arXiv 2002.05202); d_gate_up is written.
void GateForward(const Stream& stream, Activation activation, const Tensor& gate_up_T2I,
                 const Tensor& y_TI);
void GateBackward(const Stream& stream, Activation activation, const Tensor& dy_TI,
                  const Tensor& gate_up_T2I, const Tensor& d_gate_up_T2I);

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_ACTIVATION_H_
