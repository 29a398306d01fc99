// What tests may ask of the emulated device's matrix products, which stand for cuBLASLt's
// (planned_product.h).
#ifndef MEGATRON_OPS_CUDA_GEMM_EMULATED_PRODUCT_H_
#define MEGATRON_OPS_CUDA_GEMM_EMULATED_PRODUCT_H_

#include <cstdint>

namespace megatron::ops::cuda {

// While products are refused there are no kernels for those that do more beside than add a bias.
void RefuseEmulatedEpilogues(bool refuse);

// The number of products that were asked for and refused since the program began.
int64_t RefusedEmulatedProducts();

}  // namespace megatron::ops::cuda

#endif  // MEGATRON_OPS_CUDA_GEMM_EMULATED_PRODUCT_H_
