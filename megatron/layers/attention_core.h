// What lies between attention's projections: softmax attention of this rank's heads, for this
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
  int64_t layer = 0;       // in the whole model, from 0: of dropout
  int64_t first_head = 0;  // of this rank's query heads, counted over all ranks
  int64_t head_size = 0;
  float dropout = 0;
  bool causal = true;
  float scale = 0;     // of scores; 0: 1 / sqrt(head_size)
  bool cross = false;  // keys are those of the encoder's tokens
  // Where context-parallel ranks are no teams (context_slice.h): whether each gets all keys at
  // once.
  bool gathers_keys = false;
  ops::AttentionKernel kernel = ops::AttentionKernel::kOwn;
};

class AttentionCore {
 public:
  struct Saved {
    Tensor lse_TGR;
    AllToAllSaved all_to_all;  // in place of lse, where KeepsInputs
  };

  explicit AttentionCore(const AttentionCoreOptions& options) : options_(options) {}

  // Whether Forward keeps what backward needs of `in`, so that the caller need not.
  bool KeepsInputs(const LayerContext& ctx) const;
  // out (=). Allocates in `arena` what backward needs besides `in` and `out`.
  void Forward(const LayerContext& ctx, Arena* arena, const ops::AttentionInputs& in,
               const Tensor& out_TGRD, Saved* saved) const;
  // Gradients (=) of the inputs, from what Forward read and wrote.
  void Backward(const LayerContext& ctx, const ops::AttentionInputs& in, const Tensor& out_TGRD,
                const Tensor& dout_TGRD, const ops::AttentionInputs& gradients,
                const Saved& saved) const;

 private:
  // Of all ranks' tokens.
  ops::Attention Whole(const LayerContext& ctx) const;
  ContextAttention OverRanks(const LayerContext& ctx) const;

  AttentionCoreOptions options_;
};

}  // namespace megatron

#endif  // MEGATRON_LAYERS_ATTENTION_CORE_H_
