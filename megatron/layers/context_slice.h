// Which tokens of a micro-batch a context-parallel rank holds.
//
// Each sample is cut into 2C chunks of equal length for C ranks, and rank r has chunks r and 2C - 1
// - r. Under a causal mask every rank then has as much to compute as the others (the "zig-zag" of
// S. Li et al., arXiv 2310.03294, and Megatron). A rank's rows are in (sample, position) order.
//
//   sample of 16 tokens, 2 ranks:   rank 0  0 1 2 3 | 12 13 14 15     rank 1  4 5 6 7 | 8 9 10 11
#ifndef MEGATRON_LAYERS_CONTEXT_SLICE_H_
#define MEGATRON_LAYERS_CONTEXT_SLICE_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "megatron/layers/micro_batch.h"
#include "megatron/tensor/memory.h"

namespace megatron {

// Consecutive tokens of one sample: rows of the whole micro-batch, and of the rank that holds them.
struct ContextChunk {
  int64_t whole_begin = 0, local_begin = 0, length = 0;
};

// The chunks that rank `rank` of `size` holds of a micro-batch of `tokens` tokens, in ascending
// order. 2 * size divides sample_length, which divides tokens.
void ForEachContextChunk(int size, int rank, int64_t tokens, int64_t sample_length,
                         absl::FunctionRef<void(const ContextChunk&)> fn);

struct ContextShard {
  int size = 1, rank = 0;
  int64_t sample_length = 0;
};

// The part of `whole` that a rank holds, yet to be filled: its new tensors are in `memory` from
// byte `offset` on, a multiple of Buffer::kAlignment. cu_seqlens and what `context` has of all
// tokens are whole's own, which must outlive it.
MicroBatch PlaceContextSlice(const MicroBatch& whole, const ContextShard& shard,
                             const Buffer& memory, int64_t offset);
// Fills `slice`. Both are on the host.
void FillContextSlice(const MicroBatch& whole, const ContextShard& shard, const MicroBatch& slice);
// How many bytes a slice takes at most: no sequence is empty.
int64_t ContextSliceBytes(int64_t tokens, int size);

}  // namespace megatron

#endif  // MEGATRON_LAYERS_CONTEXT_SLICE_H_
