// The products of a linear layer as cuBLASLt sees them. It thinks in columns: a row-major [T, O]
// matrix is its column-major [O, T].
#ifndef MEGATRON_OPS_CUDA_GEMM_LINEAR_GEMM_H_
#define MEGATRON_OPS_CUDA_GEMM_LINEAR_GEMM_H_

#include "megatron/ops/cuda/gemm/gemm.h"
#include "megatron/ops/float8/float8_tensor.h"
#include "megatron/tensor/tensor.h"

namespace megatron::ops::cuda {

struct GemmOperands {
  const void *a = nullptr, *b = nullptr, *bias = nullptr;
  void* c = nullptr;
  const void *a_inverse_scale = nullptr, *b_inverse_scale = nullptr;  // of 8-bit floats
  void *aux = nullptr, *sums = nullptr;                               // of the epilogue
};

struct LinearGemm {
  Gemm gemm;
  GemmOperands operands;
};

// y = x w^T + bias; an empty bias is none.
LinearGemm ForwardGemm(const Tensor& x_TI, const Tensor& w_OI, const Tensor& bias_O,
                       const Tensor& y_TO);
// dx = dy w.
LinearGemm BackwardInputGemm(const Tensor& dy_TO, const Tensor& w_OI, const Tensor& dx_TI);
// dw (fp32) += dy^T x.
LinearGemm BackwardWeightGemm(const Tensor& dy_TO, const Tensor& x_TI, const Tensor& dw_OI);

// The same with what stands beside them in a layer. Not all of these exist in every dtype and on
// every device.

// Besides, sums (fp32) = column sums of dy.
LinearGemm BackwardWeightAndBiasGemm(const Tensor& dy_TO, const Tensor& x_TI, const Tensor& dw_OI,
                                     const Tensor& sums_O);
// pre = x w^T + bias, y = GELU(pre).
LinearGemm ForwardGeluGemm(const Tensor& x_TI, const Tensor& w_OI, const Tensor& bias_O,
                           const Tensor& pre_TO, const Tensor& y_TO);
// dx = (dy w) * GELU'(pre), sums (of dx's dtype) = column sums of dx.
LinearGemm BackwardInputGeluGemm(const Tensor& dy_TO, const Tensor& w_OI, const Tensor& pre_TI,
                                 const Tensor& dx_TI, const Tensor& sums_I);

// c = a b^T + bias, or c (fp32) += a b^T, of 8-bit floats: the one form of product that Hopper's
// matrix units have for them.
LinearGemm Float8Gemm(const Float8Matrix& a_MK, const Float8Matrix& b_NK, const Tensor& bias_N,
                      const Tensor& c_MN);
LinearGemm Float8AddGemm(const Float8Matrix& a_MK, const Float8Matrix& b_NK, const Tensor& c_MN);

}  // namespace megatron::ops::cuda

#endif  // MEGATRON_OPS_CUDA_GEMM_LINEAR_GEMM_H_
