// The products of a linear layer in the terms of cuBLASLt, which is column-major: a row-major [T,
// O] matrix is a column-major [O, T] matrix.
#ifndef MEGATRON_OPS_CUDA_GEMM_LINEAR_GEMM_H_
#define MEGATRON_OPS_CUDA_GEMM_LINEAR_GEMM_H_

#include "megatron/ops/cuda/gemm/gemm.h"
#include "megatron/ops/float8/float8_tensor.h"
#include "megatron/tensor/tensor.h"

namespace megatron::ops::cuda {

struct GemmOperands {
  const void *a = nullptr, *b = nullptr, *bias = nullptr;
  void* c = nullptr;
  const void *a_inverse_scale = nullptr, *b_inverse_scale = nullptr;  // only 8-bit floats
  void *aux = nullptr, *sums = nullptr;                               // operands of the epilogue
};

struct LinearGemm {
  Gemm gemm;
  GemmOperands operands;
};

// y = x w^T + bias; an empty bias means none.
LinearGemm ForwardGemm(const Tensor& x_TI, const Tensor& w_OI, const Tensor& bias_O,
                       const Tensor& y_TO);
// dx = dy w.
LinearGemm BackwardInputGemm(const Tensor& dy_TO, const Tensor& w_OI, const Tensor& dx_TI);
// dw (fp32) += dy^T x.
LinearGemm BackwardWeightGemm(const Tensor& dy_TO, const Tensor& x_TI, const Tensor& dw_OI);

// The products fused with neighbouring work of the layer. Not all of them exist in every dtype and
// on every device.

// Also computes sums (fp32) = column sums of dy.
LinearGemm BackwardWeightAndBiasGemm(const Tensor& dy_TO, const Tensor& x_TI, const Tensor& dw_OI,
                                     const Tensor& sums_O);
// pre = x w^T + bias, y = GELU(pre), of sums that are not rounded.
LinearGemm ForwardGeluGemm(const Tensor& x_TI, const Tensor& w_OI, const Tensor& bias_O,
                           const Tensor& pre_TO, const Tensor& y_TO);
// dx = (dy w) * GELU'(pre), sums (of dx's dtype) = column sums of dx; empty sums mean none.
LinearGemm BackwardInputGeluGemm(const Tensor& dy_TO, const Tensor& w_OI, const Tensor& pre_TI,
                                 const Tensor& dx_TI, const Tensor& sums_I);

// c = a b^T + bias, or c (fp32) += a b^T, of 8-bit floats. This is the only form of such products
// that Hopper's matrix units support.
LinearGemm Float8Gemm(const Float8Matrix& a_MK, const Float8Matrix& b_NK, const Tensor& bias_N,
                      const Tensor& c_MN);
LinearGemm Float8AddGemm(const Float8Matrix& a_MK, const Float8Matrix& b_NK, const Tensor& c_MN);

}  // namespace megatron::ops::cuda

#endif  // MEGATRON_OPS_CUDA_GEMM_LINEAR_GEMM_H_
