// What a layer that goes through the tokens of a sequence in their order does with context-parallel
// ranks: each of them gets all tokens of its share of the groups of heads, and gives the results
// back (context_attention.h). One rank uses its own memory, and exchanges nothing.
//
// Legend: C context ranks, T tokens of this rank, G groups.
#ifndef MEGATRON_LAYERS_CONTEXT_HEADS_H_
#define MEGATRON_LAYERS_CONTEXT_HEADS_H_

#include "megatron/layers/layer_context.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

// Returns the shape of all ranks' tokens of this rank's share of the groups, for a tensor [T, G,
// ...]: [C T, G / C, ...].
Shape ShareShape(const LayerContext& ctx, const Shape& mine);
// Returns memory in ctx.scratch for all tokens of the share; with one rank `mine`.
Tensor ShareMemory(const LayerContext& ctx, const Tensor& mine, const char* name);
// Returns memory in ctx.scratch for this rank's tokens of all groups; with one rank `share`.
Tensor OwnMemory(const LayerContext& ctx, const Tensor& share, const Shape& mine, const char* name);
void TokensToShare(const LayerContext& ctx, const Tensor& mine, const Tensor& share);
void ShareToTokens(const LayerContext& ctx, const Tensor& share, const Tensor& mine);
// Returns the share of a parameter, or of its gradient, whose dim 0 goes over groups or over what
// groups have of the same number.
Tensor ShareOf(const LayerContext& ctx, const Tensor& x);

}  // namespace megatron

#endif  // MEGATRON_LAYERS_CONTEXT_HEADS_H_
