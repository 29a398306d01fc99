// Softmax cross-entropy of logits whose columns are cut over the tensor-parallel ranks.
//
// Legend: T tokens, V columns of this rank.
#ifndef MEGATRON_LAYERS_VOCAB_PARALLEL_CROSS_ENTROPY_H_
#define MEGATRON_LAYERS_VOCAB_PARALLEL_CROSS_ENTROPY_H_

#include "megatron/layers/layer_context.h"
#include "megatron/ops/cross_entropy.h"

namespace megatron {

class VocabParallelCrossEntropy {
 public:
  struct Saved {
    Tensor logits_TV;  // their gradient, where this rank holds all columns
    Tensor labels_T, weight_T;
    Tensor max_T, sum_T;  // empty where this rank holds all columns
  };
  struct Outputs {
    Tensor loss_T;  // fp32, the same on every rank
    Tensor hit_T;   // fp32: 1 where the label is the likeliest token, else 0; may be empty
  };

  // Where softcap is above 0, the logits are capped first (ops::SoftCap).
  explicit VocabParallelCrossEntropy(const ops::VocabRange& range, float softcap = 0)
      : range_(range), softcap_(softcap) {}

  // Backward will return the gradient of sum(weight[t] * loss[t]); where weight_T is empty, there
  // is no Backward. The logits belong to this layer until then. It writes the gradient over them:
  // now, where this rank holds all columns, else in Backward. Backward needs weight_T and what this
  // allocates in `arena`.
  Saved Forward(const LayerContext& ctx, Arena* arena, const Tensor& logits_TV,
                const Tensor& labels_T, const Tensor& weight_T, const Outputs& out) const;
  // Returns the gradient in place of the logits.
  Tensor Backward(const LayerContext& ctx, const Saved& saved) const;

 private:
  ops::VocabRange range_;
  float softcap_;
};

}  // namespace megatron

#endif  // MEGATRON_LAYERS_VOCAB_PARALLEL_CROSS_ENTROPY_H_
