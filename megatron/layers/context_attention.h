// Attention of context-parallel ranks: each holds some tokens of every sequence, and its queries
// need the keys and values of all.
//
// *Ring*: a rank's keys and values go from rank to rank; each computes what its queries see of them
// and merges that with what it has. Backward sends them around again, and with them the gradients,
// to which every rank adds its part (H. Liu et al., arXiv 2310.01889). *Gather*: each rank fetches
// all keys and values, half of the groups after the other half; gradients are reduce-scattered.
// *All-to-all*: each rank gets all tokens of some of its groups of heads, and gives their outputs
// back (S. A. Jacobs et al., arXiv 2309.14509). With several teams of ranks (context_slice.h)
// tokens are exchanged for heads within a team, and keys and values go around a ring of the teams
// (J. Fang and S. Zhao, arXiv 2405.07719).
//
// Keys may be those of other tokens than the queries, cut by themselves (cross-attention), and
// scores may have a bias. Gradients of keys are summed in fp32.
//
// Legend: C context ranks, T query tokens and U key tokens of this rank, G groups, R query heads of
// each, D width of a query and key head, E of a value head.
#ifndef MEGATRON_LAYERS_CONTEXT_ATTENTION_H_
#define MEGATRON_LAYERS_CONTEXT_ATTENTION_H_

#include <vector>

#include "megatron/layers/layer_context.h"
#include "megatron/ops/attention.h"

namespace megatron {

struct ContextAttention {
  ops::Attention whole;  // over all ranks' tokens; its dropout is keyed by this rank's queries
  // This rank's knowledge of all ranks' queries and keys.
  const ContextBatch *queries, *keys;
};

// out and lse (written) are those of all keys. Gradients are written, except those of the bias and
// of the sinks, to which this rank's part is added.

void RingAttentionForward(const LayerContext& ctx, const ContextAttention& attention,
                          const ops::AttentionInputs& in, const Tensor& out_TGRE,
                          const Tensor& lse_TGR);
void RingAttentionBackward(const LayerContext& ctx, const ContextAttention& attention,
                           const ops::AttentionInputs& in, const Tensor& out_TGRE,
                           const Tensor& lse_TGR, const Tensor& dout_TGRE,
                           const ops::AttentionInputs& gradients);

void GatherAttentionForward(const LayerContext& ctx, const ContextAttention& attention,
                            const ops::AttentionInputs& in, const Tensor& out_TGRE,
                            const Tensor& lse_TGR);
void GatherAttentionBackward(const LayerContext& ctx, const ContextAttention& attention,
                             const ops::AttentionInputs& in, const Tensor& out_TGRE,
                             const Tensor& lse_TGR, const Tensor& dout_TGRE,
                             const ops::AttentionInputs& gradients);

// The tensors that the all-to-all form keeps in place of its inputs (but for sinks): all the team's
// tokens of this rank's share of the groups. Each has a dim in front of the others, over the parts
// of the share that are exchanged one after the other.
struct AllToAllSaved {
  ops::AttentionInputs in;
  Tensor out_TGRE, lse_TGR;
};

// The ranks of a team divide the number of groups.
void AllToAllAttentionForward(const LayerContext& ctx, Arena* arena,
                              const ContextAttention& attention, const ops::AttentionInputs& in,
                              const Tensor& out_TGRE, AllToAllSaved* saved);
void AllToAllAttentionBackward(const LayerContext& ctx, const ContextAttention& attention,
                               const AllToAllSaved& saved, const Tensor& sink_N,
                               const Tensor& dout_TGRE, const ops::AttentionInputs& gradients);

// The same exchange for some tokens of stripes (context_slice.h), where all ranks are one team:
// between this rank's rows of them, [rows, G, ...], and all ranks' rows in the order of the tokens,
// [C rows, G / C, ...], of this rank's share of the groups. What is of all ranks is contiguous. The
// number of rows is a multiple of kContextStripe.
struct StripedTensor {
  Tensor mine, all;
};
void ExchangeToHeads(const LayerContext& ctx, const std::vector<StripedTensor>& tensors);
void ExchangeToTokens(const LayerContext& ctx, const std::vector<StripedTensor>& tensors);

// The same exchange for all of the micro-batch's tokens, in whichever way they are dealt out, where
// all ranks are one team or each is one of its own: between [T, G, ...] of this rank's tokens and
// [C T, G / C, ...] of all. What is of all ranks is contiguous.
void ExchangeAllToHeads(const LayerContext& ctx, const Tensor& mine, const Tensor& all);
void ExchangeAllToTokens(const LayerContext& ctx, const Tensor& mine, const Tensor& all);

}  // namespace megatron

#endif  // MEGATRON_LAYERS_CONTEXT_ATTENTION_H_
