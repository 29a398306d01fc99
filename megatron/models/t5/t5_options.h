// The two stacks of a model with an encoder and a decoder (ModelKind::kT5).
//
// In T5 as it was published positions are relative, norms RMSNorms without biases anywhere, scores
// are not scaled; Megatron's has learned positions, LayerNorm and biases. Both are settings.
#ifndef MEGATRON_MODELS_T5_T5_OPTIONS_H_
#define MEGATRON_MODELS_T5_T5_OPTIONS_H_

#include "megatron/layers/transformer_options.h"
#include "megatron/models/model_options.h"

namespace megatron {

inline TransformerOptions T5EncoderOptions(const ModelOptions& options) {
  TransformerOptions encoder = options.transformer;
  encoder.name = "encoder";
  encoder.num_layers = options.num_encoder_layers;
  encoder.causal = false;
  encoder.cross_attention = false;
  return encoder;
}

inline TransformerOptions T5DecoderOptions(const ModelOptions& options) {
  TransformerOptions decoder = options.transformer;
  decoder.name = "decoder";
  decoder.causal = true;
  decoder.cross_attention = true;
  decoder.first_dropout_layer = options.num_encoder_layers;
  return decoder;
}

}  // namespace megatron

#endif  // MEGATRON_MODELS_T5_T5_OPTIONS_H_
