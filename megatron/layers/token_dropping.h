// Random layer-token dropping (random-LTD): a layer sees some of the tokens of each sample, and the
// others go around it as they are.
//
//   KeptTokens kept;
//   ChooseKept(ctx, layer, &kept);
//   TakeKept(ctx, kept, x_RH, x_MH);
//   layer.Forward(kept.Context(ctx), ..., x_MH, y_MH, ...);
//   PutKept(ctx, kept, y_MH, x_RH, y_RH);
//
// Backward is the same with gradients: it takes dy, and puts dx beside the rows of dy. The tokens
// are those of ops/token_subset.h, with a key made of the seed and the layer's number, so they are
// the same on any layout and when the layer is recomputed. Kept tokens stay in their order and keep
// their positions; attention sees those of them that come before.
//
// Where ranks share out the rows (context parallelism, sequence parallelism), they share out the
// kept rows in the same way, whoever had them: each rank puts those that it has beside zeros, and
// the sums of all ranks' are reduce-scattered. The way back is an all-gather. Sums in which all
// terms but one are zero are exact. The ranks of a grid (tensor_grid.h) have whole samples, whose
// rows each takes by itself.
//
// Legend: R rows of the residual stream and M kept rows that this rank has, K kept tokens of all
// ranks, H hidden.
#ifndef MEGATRON_LAYERS_TOKEN_DROPPING_H_
#define MEGATRON_LAYERS_TOKEN_DROPPING_H_

#include <cstdint>

#include "megatron/layers/layer_context.h"
#include "megatron/layers/micro_batch.h"
#include "megatron/ops/token_subset.h"

namespace megatron {

struct KeptTokens {
  // The kept tokens of this context-parallel rank. It has no labels; layers read no tokens either.
  MicroBatch batch;
  MicroBatch inner;  // those of ctx.inner, where it is set
  ops::KeptRows rows;

  // Returns the context of the layer's calls; this must outlive it.
  LayerContext Context(const LayerContext& ctx) const {
    LayerContext of_kept = ctx;
    of_kept.batch = &batch;
    if (ctx.inner != nullptr) of_kept.inner = &inner;
    return of_kept;
  }
};

// Chooses ctx.kept_tokens of each sample, for the layer of this number in the model. Samples have
// equal lengths and are one sequence each; with context parallelism positions are places in
// samples. The tensors of *kept are in ctx.saved.
void ChooseKept(const LayerContext& ctx, int64_t layer, KeptTokens* kept);
// x_MH = the rows of x_RH that are kept.
void TakeKept(const LayerContext& ctx, const KeptTokens& kept, const Tensor& x_RH,
              const Tensor& x_MH);
// y_RH = the rows of y_MH where tokens are kept, and those of x_RH elsewhere. y may not be x.
void PutKept(const LayerContext& ctx, const KeptTokens& kept, const Tensor& y_MH,
             const Tensor& x_RH, const Tensor& y_RH);

}  // namespace megatron

#endif  // MEGATRON_LAYERS_TOKEN_DROPPING_H_
