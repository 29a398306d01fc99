// The tokens of a micro-batch that a context-parallel rank holds.
//
// Each sample is cut into 2C chunks of equal length for C ranks, and rank r has chunks r and 2C - 1
// - r. Under a causal mask every rank then has as much to compute as the others (the "zig-zag" of
// S. Li et al., arXiv 2310.03294, and Megatron). A rank's rows are in (sample, position) order.
//
//   sample of 16 tokens, 2 ranks:   rank 0  0 1 2 3 | 12 13 14 15     rank 1  4 5 6 7 | 8 9 10 11
//
// Samples of any length (sample_length 0) are dealt out in stripes of kContextStripe tokens,
// counted over the whole micro-batch: each rank has as many tokens as the others, and of every
// sequence as many but for some at its ends, so that every rank has as much to compute with and
// without a causal mask (the idea of W. Brandon et al., "Striped Attention", arXiv 2311.09431).
//
//   samples of 11 and 5 tokens:     rank 0  0 1 2 3 | 8 9 10 0'       rank 1  4 5 6 7 | 1' 2' 3' 4'
//
// As many consecutive ranks as exchange tokens for heads (context_attention.h) are a *team*. What
// they hold together is what each of C ranks would hold if every team were one rank (of stripes:
// wider ones), and each holds of that what it would hold if there were no other team.
//
// An encoder's tokens are dealt out in the same way as the decoder's, each by themselves.
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

// The number of keys that one block of random words serves in attention's dropout.
constexpr int64_t kContextStripe = 4;

// The chunks that rank `rank` of `size` holds of a micro-batch of `tokens` tokens, in ascending
// order. 2 * size divides sample_length, which divides tokens; where it is 0, size * kContextStripe
// divides tokens.
void ForEachContextChunk(int size, int rank, int64_t tokens, int64_t sample_length,
                         absl::FunctionRef<void(const ContextChunk&)> fn);

struct ContextShard {
  int size = 1, rank = 0;
  int64_t sample_length = 0;
  int team_size = 1;  // divides size

  int teams() const { return size / team_size; }
  int team() const { return rank / team_size; }
};

// The part of `whole` that a rank holds, yet to be filled: its new tensors are in `memory` from
// byte `offset` on, a multiple of Buffer::kAlignment. cu_seqlens, sample_share_S and what `context`
// has of a team of all ranks are whole's own, which must outlive it. The label of a sequence counts
// on the rank that holds its first token; on the others its weights are 0.
MicroBatch PlaceContextSlice(const MicroBatch& whole, const ContextShard& shard,
                             const Buffer& memory, int64_t offset);
// Fills `slice`. Both are on the host.
void FillContextSlice(const MicroBatch& whole, const ContextShard& shard, const MicroBatch& slice);
// The sizes of a micro-batch without empty sequences: its tokens, its sequences that have labels,
// its encoder's tokens, the depths of its multi-token prediction.
struct ContextSliceSize {
  int64_t tokens = 0, labelled = 0, encoder_tokens = 0, mtp_depths = 0;
};
// The most bytes that a slice of such a micro-batch takes.
int64_t ContextSliceBytes(const ContextSliceSize& whole, const ContextShard& shard);

}  // namespace megatron

#endif  // MEGATRON_LAYERS_CONTEXT_SLICE_H_
