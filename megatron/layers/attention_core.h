// The core of attention, between its projections: softmax attention of this rank's heads, for this
// rank's tokens, over the keys of all context-parallel ranks.
//
// Legend: T tokens of this rank, G groups of this rank, R query heads that it has of each, D head
// size.
#ifndef MEGATRON_LAYERS_ATTENTION_CORE_H_
#define MEGATRON_LAYERS_ATTENTION_CORE_H_

#include <cstdint>

#include "megatron/layers/context_attention.h"
#include "megatron/layers/layer_context.h"
#include "megatron/layers/transformer_options.h"
#include "megatron/ops/attention.h"

namespace megatron {

struct AttentionCoreOptions {
  int64_t layer = 0;       // number in the whole model, from 0; a key of dropout
  int64_t first_head = 0;  // this rank's first query head, counted over all ranks
  int64_t head_size = 0;
  float dropout = 0;
  bool causal = true;
  float scale = 0;     // factor of the scores; 0 means 1 / sqrt(head_size)
  bool cross = false;  // the keys are those of the encoder's tokens
  // True if each rank gets all keys at once, where ranks form no teams (context_slice.h).
  bool gathers_keys = false;
  ops::AttentionKernels kernels;
};

class AttentionCore {
 public:
  struct Saved {
    Tensor lse_TGR;
    AllToAllSaved all_to_all;  // set in place of lse_TGR where KeepsInputs() holds
  };

  explicit AttentionCore(const AttentionCoreOptions& options) : options_(options) {}

  // Returns whether Forward keeps what backward needs of `in`, so that the caller need not.
  bool KeepsInputs(const LayerContext& ctx) const;
  // Writes out. Allocates in `arena` what backward needs besides `in` and `out`.
  void Forward(const LayerContext& ctx, Arena* arena, const ops::AttentionInputs& in,
               const Tensor& out_TGRD, Saved* saved) const;
  // Adds the largest score of the pass to ctx.activations, which must be set: of all heads of this
  // rank, and of the keys that a query sees, with the bias. Collective like Forward.
  void MeasureScores(const LayerContext& ctx, const ops::AttentionInputs& in) const;
  // Writes the gradients of the inputs, from what Forward read and wrote.
  void Backward(const LayerContext& ctx, const ops::AttentionInputs& in, const Tensor& out_TGRD,
                const Tensor& dout_TGRD, const ops::AttentionInputs& gradients,
                const Saved& saved) const;

 private:
  // The attention over all ranks' tokens.
  ops::Attention Whole(const LayerContext& ctx) const;
  ContextAttention OverRanks(const LayerContext& ctx) const;

  AttentionCoreOptions options_;
};

}  // namespace megatron

#endif  // MEGATRON_LAYERS_ATTENTION_CORE_H_
