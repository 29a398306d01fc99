// What BERT's head does to hidden states before they meet the vocabulary: a dense layer, GELU
// (either one) and a norm. Every tensor-parallel rank holds it whole and works on its own rows.
//
// Legend: T tokens of this rank, H hidden.
#ifndef MEGATRON_MODELS_BERT_MASKED_LM_TRANSFORM_H_
#define MEGATRON_MODELS_BERT_MASKED_LM_TRANSFORM_H_

#include <vector>

#include "megatron/layers/layer_context.h"
#include "megatron/layers/norm_layer.h"
#include "megatron/layers/transformer_options.h"
#include "megatron/tensor/parameter.h"

namespace megatron {

class MaskedLmTransform {
 public:
  struct Saved {
    Tensor x_TH, pre_TH;
    NormLayer::Saved norm;
  };

  MaskedLmTransform(const TransformerOptions& options, ops::Activation activation);

  // x must live as long as *saved.
  void Forward(const LayerContext& ctx, const Tensor& x_TH, const Tensor& y_TH, Saved* saved) const;
  // dx (=), parameter gradients (+=).
  void Backward(const LayerContext& ctx, const Tensor& dy_TH, const Tensor& dx_TH,
                const Saved& saved);

  void AppendParameters(std::vector<Parameter*>* out);

 private:
  const ops::Activation activation_;
  Parameter weight_HH_, bias_H_;
  NormLayer norm_;
};

}  // namespace megatron

#endif  // MEGATRON_MODELS_BERT_MASKED_LM_TRANSFORM_H_
