// The steps of optimizers that average over ranks by signs (sign_codes.h), element by element.
// Legend: N elements. All tensors are contiguous and fp32, unless said otherwise. These ops run on
// the CPU.
#ifndef MEGATRON_OPS_ONE_BIT_STEPS_H_
#define MEGATRON_OPS_ONE_BIT_STEPS_H_

#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron::ops {

// grad = beta1 * m + (1 - beta1) * grad_scale * grad: the momentum that a rank makes of its own
// gradient, while m stays.
void MakeMomentum(const Stream& stream, double beta1, float grad_scale, const Tensor& m_N,
                  const Tensor& grad_N);

// Takes the next momentum, which is an average over ranks, and keeps up with the second moment that
// its changes speak of:
//   g = (next - beta1 * m) / (1 - beta1); fresh = beta2 * fresh + (1 - beta2) * g^2; m = next
void TakeMomentum(const Stream& stream, double beta1, double beta2, const Tensor& next_N,
                  const Tensor& m_N, const Tensor& fresh_N);

// out[0] = the greatest of (sqrt(v) + epsilon) / (sqrt(fresh) + epsilon) where v is not 0; 0 if it
// is 0 everywhere.
void LargestRatio(const Stream& stream, float epsilon, const Tensor& v_N, const Tensor& fresh_N,
                  const Tensor& out_1);

// x = x * (sqrt(v) + epsilon)
void MultiplyByRoot(const Stream& stream, float epsilon, const Tensor& v_N, const Tensor& x_N);

// out = a + b, which is fp32, bf16 or fp16 and rounded once.
void Sum(const Stream& stream, const Tensor& a_N, const Tensor& b_N, const Tensor& out_N);

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_ONE_BIT_STEPS_H_
