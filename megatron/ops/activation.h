// Activations that are not fused into a matrix product. Legend: T tokens, F features. fp32, bf16 or
// fp16, contiguous.
#ifndef MEGATRON_OPS_ACTIVATION_H_
#define MEGATRON_OPS_ACTIVATION_H_

#include "megatron/ops/activation_type.h"
#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron::ops {

// y = activation(x); dx = dy * activation'(x). y may be x's memory, dx may be dy's.
void ActivationForward(const Stream& stream, Activation activation, const Tensor& x_TF,
                       const Tensor& y_TF);
void ActivationBackward(const Stream& stream, Activation activation, const Tensor& dy_TF,
                        const Tensor& x_TF, const Tensor& dx_TF);

// gate_up is [T, 2F]: all gates, then all ups. y = activation(gate) * up, which with kSilu is
// SwiGLU (N. Shazeer, arXiv 2002.05202); d_gate_up is written.
void GateForward(const Stream& stream, Activation activation, const Tensor& gate_up_T2F,
                 const Tensor& y_TF);
void GateBackward(const Stream& stream, Activation activation, const Tensor& dy_TF,
                  const Tensor& gate_up_T2F, const Tensor& d_gate_up_T2F);

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_ACTIVATION_H_
