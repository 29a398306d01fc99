// Matrix products of 8-bit floats by cuBLASLt.
#include "glog/logging.h"
#include "megatron/ops/cuda/gemm/linear_gemm.h"
#include "megatron/ops/cuda/gemm/planned_product.h"
#include "megatron/ops/cuda/kernel_table.h"
#include "megatron/ops/float8/product.h"

namespace megatron::ops::cuda {

void Float8Product(const Stream& stream, const Float8Matrix& a_MK, const Float8Matrix& b_NK,
                   const Tensor& bias_N, const Tensor& c_MN) {
  CHECK_NE(c_MN.dtype(), DType::kFloat32);
  RunPlanned(stream, Float8Gemm(a_MK, b_NK, bias_N, c_MN));
}

void AddFloat8Product(const Stream& stream, const Float8Matrix& a_MK, const Float8Matrix& b_NK,
                      const Tensor& c_MN) {
  if (a_MK.codes.dim(1) == 0) return;
  RunPlanned(stream, Float8AddGemm(a_MK, b_NK, c_MN));
}

MEGATRON_CUDA_KERNEL(Float8Product);
MEGATRON_CUDA_KERNEL(AddFloat8Product);

}  // namespace megatron::ops::cuda
