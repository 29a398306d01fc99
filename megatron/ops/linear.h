// Matrix products of linear layers, fused with bias and activation.
//
// Legend: T tokens, I input features, O output features. Weights are [O, I], as in Megatron and
// PyTorch. x, y, their gradients, weights and biases share one dtype (fp32, bf16 or fp16); products
// accumulate in fp32; gradients of weights and biases are fp32. All tensors are contiguous, but the
// rows of 2-D activations may have a stride. An empty bias means none. Results do not depend on the
// number of threads. Backward ops write their `d...` outputs (=) unless they are said to add (+=).
#ifndef MEGATRON_OPS_LINEAR_H_
#define MEGATRON_OPS_LINEAR_H_

#include "megatron/ops/activation_type.h"
#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron::ops {

// y = x w^T + bias.
void LinearForward(const Stream& stream, const Tensor& x_TI, const Tensor& w_OI,
                   const Tensor& bias_O, const Tensor& y_TO);

// pre = x w^T + bias (=), y = activation(pre) (=).
void LinearActivationForward(const Stream& stream, Activation activation, const Tensor& x_TI,
                             const Tensor& w_OI, const Tensor& bias_O, const Tensor& pre_TO,
                             const Tensor& y_TO);

// dx = dy w.
void LinearBackwardInput(const Stream& stream, const Tensor& dy_TO, const Tensor& w_OI,
                         const Tensor& dx_TI);

// dx = (dy w) * activation'(pre): the gradient of the input of the activation in front of this
// layer. dbias (fp32) += column sums of dx, unless dbias is empty.
void LinearActivationBackwardInput(const Stream& stream, Activation activation, const Tensor& dy_TO,
                                   const Tensor& w_OI, const Tensor& pre_TI, const Tensor& dx_TI,
                                   const Tensor& dbias_I);

// dw += dy^T x. dbias += column sums of dy, unless dbias is empty.
void LinearBackwardWeight(const Stream& stream, const Tensor& dy_TO, const Tensor& x_TI,
                          const Tensor& dw_OI, const Tensor& dbias_O);

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_LINEAR_H_
