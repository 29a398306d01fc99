// A head that tells the class of each sequence from the hidden state of its first token: a dense
// layer and tanh (BERT's pooler), dropout, and a linear layer to the classes. BERT's binary head,
// which tells in which order the two parts of a sequence stand, is one. Every tensor-parallel rank
// holds the head whole and computes it for all sequences.
//
// With choices, so many sequences that follow each other are a group, and the head tells which of
// them is the right one: the linear layer has one output, and the softmax is over the group. Labels
// and weights are those of groups then, and what fills a micro-batch up behind them does not count.
//
// Legend: T tokens of this rank, S sequences of the micro-batch, H hidden, C classes, G groups, or
// sequences where there are none, K what a label tells apart: classes or choices.
#ifndef MEGATRON_MODELS_BERT_SEQUENCE_HEAD_H_
#define MEGATRON_MODELS_BERT_SEQUENCE_HEAD_H_

#include <string>
#include <vector>

#include "megatron/layers/layer_context.h"
#include "megatron/layers/transformer_options.h"
#include "megatron/ops/dropout.h"
#include "megatron/tensor/parameter.h"

namespace megatron {

struct SequenceHeadOptions {
  std::string name;  // the prefix of the linear layer's parameters: "binary_head"
  int64_t classes = 2;
  int64_t choices = 1;  // sequences of a group; with several, there is one class
  float dropout = 0;
};

class SequenceHead {
 public:
  struct Saved {
    Tensor first_SH, pre_SH, pooled_SH, dropped_SH;
    Tensor logits_SC, max_G, sum_G;
  };

  SequenceHead(const TransformerOptions& transformer, const SequenceHeadOptions& options);

  // Adds to `loss_sums` (fp32 [2]) the sums of sequence_weight * loss and of sequence_weight, to
  // `hit_sums` those of sequence_weight * hit (1 for a right prediction) and of sequence_weight.
  // Unless `losses` (fp32) is empty, its first G elements get the loss of each group.
  void Forward(const LayerContext& ctx, const Tensor& x_TH, const Tensor& loss_sums,
               const Tensor& hit_sums, Saved* saved, const Tensor& losses = Tensor()) const;
  // dx (+=), parameter gradients (+=).
  void Backward(const LayerContext& ctx, const Tensor& dx_TH, const Saved& saved);

  void AppendParameters(std::vector<Parameter*>* out);

 private:
  ops::Dropout DropoutOf(const LayerContext& ctx) const;
  int64_t GroupsOf(const MicroBatch& batch) const;
  int64_t told_apart() const { return options_.choices > 1 ? options_.choices : options_.classes; }

  SequenceHeadOptions options_;
  Parameter pooler_weight_HH_, pooler_bias_H_, weight_CH_, bias_C_;
};

}  // namespace megatron

#endif  // MEGATRON_MODELS_BERT_SEQUENCE_HEAD_H_
