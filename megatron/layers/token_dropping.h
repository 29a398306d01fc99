// Random layer-token dropping (random-LTD): a layer sees some of the tokens of each sample, and the
// others go around it as they are.
//
//   KeptTokens kept;
//   ChooseKept(ctx, layer, &kept);
//   TakeKept(ctx, kept, x_TH, x_KH);
//   layer.Forward(kept.Context(ctx), ..., x_KH, y_KH, ...);
//   PutKept(ctx, kept, y_KH, x_TH, y_TH);
//
// Backward is the same with gradients: it takes dy, and puts dx beside the rows of dy. The tokens
// are those of ops/token_subset.h, with a key made of the seed and the layer's number, so they are
// the same on any layout and when the layer is recomputed. Kept tokens stay in their order and keep
// their positions; attention sees those of them that come before.
//
// Legend: T tokens, K kept tokens, H hidden.
#ifndef MEGATRON_LAYERS_TOKEN_DROPPING_H_
#define MEGATRON_LAYERS_TOKEN_DROPPING_H_

#include <cstdint>

#include "megatron/layers/layer_context.h"
#include "megatron/layers/micro_batch.h"
#include "megatron/ops/token_subset.h"

namespace megatron {

struct KeptTokens {
  MicroBatch batch;  // has no labels
  ops::TokenSubset subset;

  // Returns the context of the layer's calls; this must outlive it.
  LayerContext Context(const LayerContext& ctx) const {
    LayerContext of_kept = ctx;
    of_kept.batch = &batch;
    return of_kept;
  }
};

// Chooses ctx.kept_tokens of each sample, for the layer of this number in the model. Samples have
// equal lengths, are one sequence each, and this rank has all their rows. The tensors of *kept are
// in ctx.saved.
void ChooseKept(const LayerContext& ctx, int64_t layer, KeptTokens* kept);
// x_KH = the rows of x_TH that are kept.
void TakeKept(const LayerContext& ctx, const KeptTokens& kept, const Tensor& x_TH,
              const Tensor& x_KH);
// y_TH = the rows of y_KH where tokens are kept, and those of x_TH elsewhere. y may not be x.
void PutKept(const LayerContext& ctx, const KeptTokens& kept, const Tensor& y_KH,
             const Tensor& x_TH, const Tensor& y_TH);

}  // namespace megatron

#endif  // MEGATRON_LAYERS_TOKEN_DROPPING_H_
