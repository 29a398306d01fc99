// Attention on Hopper (compute capability 9.0): tiles come by TMA, products are wgmma's.
//
// bf16 and fp16, heads of 64 and 128 channels, causal or not, grouped queries, packed sequences;
// neither dropout nor bias, no keys that come in parts. No row is written by two blocks, so there
// are no atomics and one order of sums, in which other sequences have no part. They run where
// HopperAttentionIsAvailable (../own_attention.h).
#ifndef MEGATRON_OPS_CUDA_HOPPER_ATTENTION_H_
#define MEGATRON_OPS_CUDA_HOPPER_ATTENTION_H_

#include "megatron/ops/cuda/attention.cuh"
#include "megatron/tensor/dtype.h"
#include "megatron/tensor/stream.h"

namespace megatron::ops::cuda {

// Whether the kernels take the operands, of which those that are null are not looked at.
bool HopperTakes(DType dtype, const AttentionArgs& args);

void HopperAttentionForward(const Stream& stream, DType dtype, const AttentionArgs& args);
// Wants delta.
void HopperAttentionBackward(const Stream& stream, DType dtype, const AttentionArgs& args);

}  // namespace megatron::ops::cuda

#endif  // MEGATRON_OPS_CUDA_HOPPER_ATTENTION_H_
