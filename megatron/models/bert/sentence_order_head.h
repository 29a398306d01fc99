// BERT's binary head: says from the hidden state of a sequence's first token whether its two parts
// stand in their order, by a dense layer, tanh, and a linear layer to two classes. Every
// tensor-parallel rank holds it whole and computes it for all sequences.
//
// Legend: T tokens of this rank, S sequences of the micro-batch, H hidden.
#ifndef MEGATRON_MODELS_BERT_SENTENCE_ORDER_HEAD_H_
#define MEGATRON_MODELS_BERT_SENTENCE_ORDER_HEAD_H_

#include <vector>

#include "megatron/layers/layer_context.h"
#include "megatron/layers/transformer_options.h"
#include "megatron/tensor/parameter.h"

namespace megatron {

class SentenceOrderHead {
 public:
  struct Saved {
    Tensor first_SH, pre_SH, pooled_SH;
    Tensor logits_S2, max_S, sum_S;
  };

  explicit SentenceOrderHead(const TransformerOptions& options);

  // Adds to `loss_sums` (fp32 [2]) those of sequence_weight * loss and of sequence_weight, to
  // `hit_sums` the same of what was predicted rightly.
  void Forward(const LayerContext& ctx, const Tensor& x_TH, const Tensor& loss_sums,
               const Tensor& hit_sums, Saved* saved) const;
  // dx (+=), parameter gradients (+=).
  void Backward(const LayerContext& ctx, const Tensor& dx_TH, const Saved& saved);

  void AppendParameters(std::vector<Parameter*>* out);

 private:
  Parameter pooler_weight_HH_, pooler_bias_H_, weight_2H_, bias_2_;
};

}  // namespace megatron

#endif  // MEGATRON_MODELS_BERT_SENTENCE_ORDER_HEAD_H_
