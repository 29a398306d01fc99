// GPT-2's config.json.
#include <string>

#include "megatron/models/huggingface/hf_families.h"

namespace megatron {

void ReadHfGpt2(const HfFields& fields, ModelOptions* options) {
  CheckCommonHfFields(fields, "GPT2LMHeadModel");
  TransformerOptions& layer = options->transformer;
  layer.hidden_size = fields.Size("n_embd", kMaxHfWidth);
  layer.num_layers = fields.Size("n_layer", kMaxHfLayers);
  layer.num_attention_heads = layer.num_query_groups = fields.Size("n_head", kMaxHfHeads);
  layer.ffn_hidden_size = fields.Size("n_inner", kMaxHfWidth, 4 * layer.hidden_size);
  if (layer.hidden_size % layer.num_attention_heads != 0) {
    fields.Error("n_head", "does not divide n_embd");
  }
  layer.kv_channels = layer.hidden_size / layer.num_attention_heads;
  layer.norm.epsilon = static_cast<float>(fields.Number("layer_norm_epsilon", 0, 1, 1e-5));
  const std::string activation = fields.Text("activation_function", "gelu_new");
  if (activation == "gelu") {
    layer.activation = ops::Activation::kGeluErf;
  } else if (activation != "gelu_new" && activation != "gelu_pytorch_tanh") {
    fields.Error("activation_function", "must be gelu_new, gelu_pytorch_tanh or gelu");
  }
  fields.Refuse("scale_attn_weights", false, "attention is always scaled here");
  fields.Refuse("scale_attn_by_inverse_layer_idx", true, "attention is scaled alike in all layers");
  fields.Refuse("add_cross_attention", true, "there is no cross-attention here");
  options->max_positions = fields.Size("n_positions", kMaxHfIds);
  options->tied_embeddings = fields.Bool("tie_word_embeddings", true);
  layer.hidden_dropout = HfDropout(fields, "resid_pdrop", 0.1);
  CheckHfEmbeddingDropout(fields, "embd_pdrop", 0.1, "resid_pdrop", layer.hidden_dropout);
  layer.attention_dropout = HfDropout(fields, "attn_pdrop", 0.1);
}

void CheckHfGpt2(const ModelOptions& options, HfReasons* reasons) {
  const TransformerOptions& layer = options.transformer;
  auto require = [&](bool holds, const char* reason) {
    if (!holds) reasons->push_back(reason);
  };
  require(layer.norm.kind == ops::Norm::kLayerNorm,
          "normalization RMSNorm with learned positions: gpt2 has LayerNorm");
  require(!layer.gated, "swiglu with learned positions: gpt2's MLP has no gate");
  require(!layer.rotary, "rotary and learned positions together");
  require(layer.linear_bias && layer.qkv_bias,
          "disable_bias_linear with learned positions: gpt2 has biases");
  require(
      layer.num_query_groups == layer.num_attention_heads,
      "num_query_groups with learned positions: each of gpt2's heads has its own key and value");
  require(layer.kv_channels * layer.num_attention_heads == layer.hidden_size,
          "kv_channels with learned positions: gpt2's heads are hidden_size / num_attention_heads "
          "wide");
  require(layer.window_size == 0,
          "window_size with learned positions: gpt2's attention sees all that came before");
  require(layer.activation == ops::Activation::kGeluTanh ||
              layer.activation == ops::Activation::kGeluErf,
          "activation_func: gpt2 has gelu_new and gelu");
}

HfJson HfGpt2Config(const ModelOptions& options) {
  const TransformerOptions& layer = options.transformer;
  return {
      {"model_type", "gpt2"},
      {"architectures", HfJson::array({"GPT2LMHeadModel"})},
      {"n_positions", options.max_positions},
      {"n_embd", layer.hidden_size},
      {"n_layer", layer.num_layers},
      {"n_head", layer.num_attention_heads},
      {"n_inner", layer.ffn_hidden_size},
      {"activation_function", layer.activation == ops::Activation::kGeluErf ? "gelu" : "gelu_new"},
      {"layer_norm_epsilon", ShortestDouble(layer.norm.epsilon)},
      {"scale_attn_weights", true},
      {"scale_attn_by_inverse_layer_idx", false},
      {"embd_pdrop", ShortestDouble(layer.hidden_dropout)},
      {"resid_pdrop", ShortestDouble(layer.hidden_dropout)},
      {"attn_pdrop", ShortestDouble(layer.attention_dropout)}};
}

}  // namespace megatron
