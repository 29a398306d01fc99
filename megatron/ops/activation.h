// Activations as ops of their own, not fused into a matrix product. Legend: T tokens, I features.
// Tensors are fp32, bf16 or fp16, and contiguous.
#ifndef MEGATRON_OPS_ACTIVATION_H_
#define MEGATRON_OPS_ACTIVATION_H_

#include "megatron/ops/activation_type.h"
#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron::ops {

// Forward: y = activation(x); y may be x's memory. Backward: dx = dy * activation'(x); dx may be
// dy's memory.
void ActivationForward(const Stream& stream, Activation activation, const Tensor& x_TI,
                       const Tensor& y_TI);
void ActivationBackward(const Stream& stream, Activation activation, const Tensor& dy_TI,
                        const Tensor& x_TI, const Tensor& dx_TI);

// The same with dbias (fp32) += column sums of dx: the gradient of the bias of the layer that
// computed x.
void ActivationBackwardAndBias(const Stream& stream, Activation activation, const Tensor& dy_TI,
                               const Tensor& x_TI, const Tensor& dx_TI, const Tensor& dbias_I);
// Returns whether that costs no more than ActivationBackward, as on a GPU. On the CPU, a bias's
// gradient is best computed with its weight's (linear.h).
bool ActivationBackwardSumsForFree(const Stream& stream);

// Each row of gate_up holds all gates, then all ups. Forward: y = activation(gate) * up, which is
// SwiGLU with kSilu (N. Shazeer, arXiv 2002.05202), or what Gate says more. Backward writes
// d_gate_up (=); what lies beyond the gate's limit has no gradient.
void GateForward(const Stream& stream, const Gate& gate, const Tensor& gate_up_T2I,
                 const Tensor& y_TI);
void GateBackward(const Stream& stream, const Gate& gate, const Tensor& dy_TI,
                  const Tensor& gate_up_T2I, const Tensor& d_gate_up_T2I);

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_ACTIVATION_H_
