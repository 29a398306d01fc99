// Attention on Hopper (compute capability 9.0): tiles are loaded by TMA, products are wgmma's.
//
// The kernels take bf16 and fp16, heads of 64 and 128 channels (values as wide as keys), causal or
// not, grouped queries and packed sequences, with a window or with dropout; no bias, and no keys
// that arrive in parts. No row is written by two blocks, so sums need no atomics, and have one
// order, which does not depend on other sequences. Blocks of the forward pass take tiles of queries
// by a counter, which is the only atomic. The kernels run if HopperAttentionIsAvailable
// (../own_attention.h).
#ifndef MEGATRON_OPS_CUDA_HOPPER_ATTENTION_H_
#define MEGATRON_OPS_CUDA_HOPPER_ATTENTION_H_

#include "megatron/ops/cuda/attention.cuh"
#include "megatron/tensor/dtype.h"
#include "megatron/tensor/stream.h"

namespace megatron::ops::cuda {

// Returns whether the kernels support the operands; null operands are ignored.
bool HopperTakes(DType dtype, const AttentionArgs& args);

void HopperAttentionForward(const Stream& stream, DType dtype, const AttentionArgs& args);
// args.delta is room for what the first kernel leaves to the second.
void HopperAttentionBackward(const Stream& stream, DType dtype, const AttentionArgs& args);

}  // namespace megatron::ops::cuda

#endif  // MEGATRON_OPS_CUDA_HOPPER_ATTENTION_H_
