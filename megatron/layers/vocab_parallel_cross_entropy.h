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
    Tensor logits_TV, labels_T, max_T, sum_T;
  };
  struct Outputs {
    Tensor loss_T;  // fp32, the same on every rank
    Tensor hit_T;   // fp32: 1 where the label is the likeliest token, else 0; may be empty
  };

  // Where softcap is above 0, the logits are capped first (ops::SoftCap).
  explicit VocabParallelCrossEntropy(const ops::VocabRange& range, float softcap = 0)
      : range_(range), softcap_(softcap) {}

  // The logits belong to this layer until Backward, which needs them and what this allocates in
  // `arena`.
  Saved Forward(const LayerContext& ctx, Arena* arena, const Tensor& logits_TV,
                const Tensor& labels_T, const Outputs& out) const;
  // Writes the gradient of sum(weight[t] * loss[t]) over the logits, and returns it.
  Tensor Backward(const LayerContext& ctx, const Tensor& weight_T, const Saved& saved) const;

 private:
  ops::VocabRange range_;
  float softcap_;
};

}  // namespace megatron

#endif  // MEGATRON_LAYERS_VOCAB_PARALLEL_CROSS_ENTROPY_H_
