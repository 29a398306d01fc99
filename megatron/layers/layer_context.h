// LayerContext, which a layer's methods are given, and the rules that layers follow.
//
// A layer owns parameters and options, never activations. Its methods are
//   Forward(ctx, x, y, saved)    writes y, keeps in *saved what backward needs
//   Backward(ctx, dy, dx, saved) writes dx and accumulates parameter gradients (+=)
//   BackwardWeight(ctx, saved)   accumulates those that Backward has put off
// Outputs are passed in, because only the caller knows how long they live: in `saved` (until the
// micro-batch's backward is done), or in `scratch` (until the caller's scope ends).
//
// Backward puts parameter gradients off where ctx.deferred is set, for schedules that fill idle
// time with them. What BackwardWeight reads must then lie in ctx.saved or ctx.deferred: a layer
// allocates it in ctx.kept(), and ends its Backward with
//   if (!ctx.defers()) BackwardWeight(ctx, saved);
// inside the scope of its scratch memory. So the same calls are made, each parameter's in the same
// order, and the bits are the same. What comes out of the same pass as dx (the parameters of norms,
// biases in front of dropout or of an activation) is never put off. dx and dy need not outlive
// Backward, nor what is kept BackwardWeight. A layer without weights has no BackwardWeight.
//
// Under *sequence parallelism* (V. Korthikanti et al., arXiv 2205.05198) each tensor-parallel rank
// holds some of the rows of the residual stream, and norms, dropout and residual sums work on
// those; the layers that need all tokens gather them and give back their own rows.
//
// Legend: T tokens of the micro-batch, or those of them that this rank holds, U tokens of the
// encoder, H hidden size, W distances, N attention heads of this rank.
#ifndef MEGATRON_LAYERS_LAYER_CONTEXT_H_
#define MEGATRON_LAYERS_LAYER_CONTEXT_H_

#include <cstdint>

#include "megatron/comm/process_group.h"
#include "megatron/layers/micro_batch.h"
#include "megatron/layers/offload_modules.h"
#include "megatron/layers/tensor_grid.h"
#include "megatron/tensor/memory.h"
#include "megatron/tensor/stream.h"

namespace megatron {

class ActivationMeter;
class HostCopies;
class WeightBlocks;
struct CachedTokens;

struct LayerContext {
  ProcessGroup tensor_group;  // the ranks over which weight matrices are cut
  Stream stream;
  Arena* saved;  // never the scratch arena, whose scopes would take back what is saved
  Arena* scratch;
  const MicroBatch* batch;
  uint64_t seed = 0;     // the seed of dropout
  bool training = true;  // false: no dropout
  // Whether a backward pass follows in training. Where none does, routers add to their sums in
  // Forward what they otherwise add in Backward.
  bool has_backward = true;
  bool sequence_parallel = false;
  Arena* recompute = nullptr;  // holds what recomputed layers save; null outside training
  Arena* deferred = nullptr;   // where set, backward puts parameter gradients off, as above
  // Where set, the arena in place of `saved` for what these parts of a layer keep.
  Arena* offloaded = nullptr;
  OffloadModules offload_modules;
  // The number of tokens of each sample that layers see which drop tokens (token_dropping.h); 0:
  // all.
  int64_t kept_tokens = 0;
  // The owner of weights and gradients; null where they are there all the time. Stages use it,
  // layers do not.
  WeightBlocks* blocks = nullptr;

  // Where set, saved, scratch and recompute have host arenas (Arena::host()), and attention in
  // chunks keeps there what it has of all tokens. It makes all copies to and from them.
  HostCopies* host_copies = nullptr;

  // Where set, the micro-batch has the new tokens of sequences whose earlier tokens' keys and
  // values are in a cache (kv_cache.h), and self-attention sees those; layers with a state go on
  // with it (state_cache.h). Passes without backward have it.
  const CachedTokens* cached = nullptr;

  // Where set, forward passes add the extremes of what they compute to it.
  ActivationMeter* activations = nullptr;

  // Where set, forward passes raise the values of this rank's heads to their largest scores in
  // self-attention (ops::Attention::largest_scores_N); L layers of the whole model, an encoder's
  // before the decoder's, and N heads of the whole model.
  Tensor largest_scores_LN;

  // The ranks that hold the other tokens of each sample. While text is generated it is this rank
  // alone, since every rank then has all tokens.
  ProcessGroup context_group;

  // This rank's groups where tensor-parallel ranks form a grid (tensor_grid.h), of which
  // tensor_group then is heads(). The rank's columns of the residual stream begin with
  // `first_column`.
  TensorGridGroups grid;
  int64_t first_column = 0;
  // Where set, the samples of a cube's inner layout, which attention and the loss see, in place of
  // batch; it has as many tokens.
  const MicroBatch* inner = nullptr;

  // The encoder's output, for a decoder with cross-attention, with the rows of the residual stream,
  // and in backward its gradient, to which each layer adds.
  Tensor encoder_UH, encoder_gradient_UH;
  // The bias of relative positions, which attention adds to scores (ops::AttentionInputs), and in
  // backward its gradient, to which each layer adds.
  Tensor relative_bias_WN, relative_bias_gradient_WN;

  // The number of rows of the residual stream that this rank holds.
  int64_t rows() const {
    return batch->num_tokens() / (sequence_parallel ? tensor_group.size() : 1);
  }
  bool is_grid() const { return grid.is_grid(); }
  // The samples that attention and the loss see.
  const MicroBatch& inner_batch() const { return inner != nullptr ? *inner : *batch; }
  bool defers() const { return deferred != nullptr; }
  // The arena for what a part of a layer keeps.
  Arena* SavedBy(OffloadModule module) const {
    return offloaded != nullptr && offload_modules.Has(module) ? offloaded : saved;
  }
  // The context of that part, whose `saved` is this arena.
  LayerContext Of(OffloadModule module) const {
    LayerContext part = *this;
    part.saved = SavedBy(module);
    return part;
  }
  // The context with one arena for all that is kept.
  LayerContext SavingIn(Arena* arena) const {
    LayerContext other = *this;
    other.saved = arena;
    other.offloaded = nullptr;
    return other;
  }
  // The arena for tensors that Backward makes and BackwardWeight reads.
  Arena* kept() const { return defers() ? deferred : scratch; }
  // This rank's rows of a tensor that has one entry per token.
  Tensor MyRows(const Tensor& x_T) const {
    if (!sequence_parallel) return x_T;
    return x_T.Slice(0, tensor_group.rank() * rows(), (tensor_group.rank() + 1) * rows());
  }
};

}  // namespace megatron

#endif  // MEGATRON_LAYERS_LAYER_CONTEXT_H_
