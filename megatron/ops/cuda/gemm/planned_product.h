// Runs a product with the kernel that the process's planner chooses for it.
#ifndef MEGATRON_OPS_CUDA_GEMM_PLANNED_PRODUCT_H_
#define MEGATRON_OPS_CUDA_GEMM_PLANNED_PRODUCT_H_

#include "megatron/ops/cuda/gemm/linear_gemm.h"
#include "megatron/tensor/stream.h"

namespace megatron::ops::cuda {

// Threads: any. The first run of a product may wait for the device.
void RunPlanned(const Stream& stream, const LinearGemm& linear);

// Returns false, and does nothing, if cuBLASLt has no kernel for the product or refuses to run it.
// The log says so once, and the answer is the same for all later runs of the product.
bool RunPlannedIfPossible(const Stream& stream, const LinearGemm& linear);

}  // namespace megatron::ops::cuda

#endif  // MEGATRON_OPS_CUDA_GEMM_PLANNED_PRODUCT_H_
