// LayerNorm and RMSNorm, alone or fused with the residual sum in front of them.
//
// Legend: T rows, H columns. Rows are all leading dims of x (at most 3, of any strides; the last
// dim is contiguous), so the heads in a packed QKV can be normalized in place. x, y, gamma and beta
// share a dtype. Statistics and gradients of parameters are fp32; statistics have one entry per
// row, in the order of the dims. RMSNorm has no mean, and either norm may have no beta: those
// tensors are then empty.
#ifndef MEGATRON_OPS_NORM_H_
#define MEGATRON_OPS_NORM_H_

#include "megatron/ops/dropout.h"
#include "megatron/ops/norm_options.h"
#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron::ops {

// The parameters of one norm and the statistics that forward writes and backward reads.
struct NormTensors {
  Tensor gamma_H, beta_H;
  Tensor mean_T, rstd_T;
};

// y = norm(x). y may be x's memory only if there is no backward pass.
void NormForward(const Stream& stream, const Norm& norm, const Tensor& x_TH,
                 const NormTensors& tensors, const Tensor& y_TH);

// sum = residual + dropout(x + bias), y = norm(sum): the end of one sublayer and the start of the
// next in one pass. `sum` may be the residual's memory. The bits are those of BiasDropoutAdd
// followed by NormForward.
void ResidualNormForward(const Stream& stream, const Norm& norm, const Dropout& dropout,
                         const Tensor& x_TH, const Tensor& bias_H, const Tensor& residual_TH,
                         const Tensor& sum_TH, const NormTensors& tensors, const Tensor& y_TH);

// dx = gradient through the norm + dresidual, the gradient that flows around the norm (unless
// empty). dx may be the memory of dy or of dresidual. dgamma and dbeta (fp32) +=; either may be
// empty. dbias (fp32) += column sums of dx [T, H], unless it is empty: the gradient of a bias that
// was added to x. Then dx is contiguous.
void NormBackward(const Stream& stream, const Norm& norm, const Tensor& dy_TH, const Tensor& x_TH,
                  const NormTensors& tensors, const Tensor& dresidual_TH, const Tensor& dx_TH,
                  const Tensor& dgamma_H, const Tensor& dbeta_H, const Tensor& dbias_H = Tensor());

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_NORM_H_
