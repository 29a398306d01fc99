// BERT's config.json.
#include <string>

#include "absl/strings/str_cat.h"
#include "megatron/models/huggingface/hf_families.h"

namespace megatron {
namespace {

const char* Architecture(bool post_norm, bool sentence_order_head) {
  if (post_norm) return sentence_order_head ? "BertForPreTraining" : "BertForMaskedLM";
  return sentence_order_head ? "MegatronBertForPreTraining" : "MegatronBertForMaskedLM";
}

// The class of Hugging Face's that a model is written for.
std::string ClassOf(const ModelOptions& options) {
  const bool post_norm = options.transformer.post_norm;
  if (options.num_classes == 0) return Architecture(post_norm, options.sentence_order_head);
  return absl::StrCat(post_norm ? "BertFor" : "MegatronBertFor",
                      options.num_choices > 1 ? "MultipleChoice" : "SequenceClassification");
}

}  // namespace

void ReadHfBert(const HfFields& fields, const std::string& type, ModelOptions* options) {
  TransformerOptions& layer = options->transformer;
  layer.name = "encoder";
  layer.causal = false;
  layer.post_norm = type == "bert";
  options->kind = ModelKind::kBert;
  options->sentence_order_head =
      !fields.Has("architectures") ||
      fields.Get("architectures") != HfJson::array({Architecture(layer.post_norm, false)});
  CheckCommonHfFields(fields, Architecture(layer.post_norm, options->sentence_order_head));
  layer.hidden_size = fields.Size("hidden_size", kMaxHfWidth);
  layer.num_layers = fields.Size("num_hidden_layers", kMaxHfLayers);
  layer.num_attention_heads = layer.num_query_groups =
      fields.Size("num_attention_heads", kMaxHfHeads);
  layer.ffn_hidden_size = fields.Size("intermediate_size", kMaxHfWidth);
  if (layer.hidden_size % layer.num_attention_heads != 0)
    fields.Error("num_attention_heads", "does not divide hidden_size");
  layer.kv_channels = layer.hidden_size / layer.num_attention_heads;
  layer.norm.epsilon = static_cast<float>(fields.Number("layer_norm_eps", 0, 1, 1e-12));
  const std::string activation = fields.Text("hidden_act", "gelu");
  const bool by_tanh = activation == "gelu_new" || activation == "gelu_pytorch_tanh";
  layer.activation = options->masked_lm_activation =
      by_tanh ? ops::Activation::kGeluTanh : ops::Activation::kGeluErf;
  if (activation != "gelu" && !by_tanh)
    fields.Error("hidden_act", "must be gelu, gelu_new or gelu_pytorch_tanh");
  // Without a name for its positions the class there adds none.
  if (fields.IsNull("position_embedding_type") ||
      fields.Text("position_embedding_type", "absolute") != "absolute")
    fields.Error("position_embedding_type", "must be absolute");
  fields.Refuse("is_decoder", true, "BERT sees the whole text here");
  fields.Refuse("add_cross_attention", true, "there is no cross-attention here");
  fields.Refuse("tie_word_embeddings", false, "BERT's output matrix is its word table here");
  options->max_positions = fields.Size("max_position_embeddings", kMaxHfIds);
  options->num_token_types = fields.Size("type_vocab_size", kMaxHfHeads, 2);
  if (options->sentence_order_head && options->num_token_types < 2)
    fields.Error("type_vocab_size", "must be at least 2 to tell two pieces apart");
  layer.hidden_dropout = HfDropout(fields, "hidden_dropout_prob", 0.1);
  layer.attention_dropout = HfDropout(fields, "attention_probs_dropout_prob", 0.1);
}

int64_t HfTokenTypes(const ModelOptions& options) {
  return options.num_token_types > 0 ? options.num_token_types : 2;
}

void CheckHfBert(const ModelOptions& options, HfReasons* reasons) {
  const TransformerOptions& layer = options.transformer;
  auto require = [&](bool holds, const char* reason) {
    if (!holds) reasons->push_back(reason);
  };
  require(layer.norm.kind == ops::Norm::kLayerNorm, "normalization RMSNorm: BERT has LayerNorm");
  require(layer.activation == ops::Activation::kGeluErf ||
              layer.activation == ops::Activation::kGeluTanh,
          "activation_func: BERT has gelu_erf and gelu_tanh");
  require(layer.activation == options.masked_lm_activation || options.num_classes > 0,
          "activation_func: BERT's head has the GELU of its layers; here it has the exact one, and "
          "that by tanh with openai_gelu (export_hf --openai_gelu writes it so)");
  require(!layer.gated, "swiglu: BERT's MLP has no gate");
  require(options.learned_positions && !layer.rotary,
          "position_embedding_type: BERT's positions are learned");
  require(layer.linear_bias && layer.qkv_bias, "disable_bias_linear: BERT has biases");
  require(layer.num_query_groups == layer.num_attention_heads,
          "num_query_groups: each of BERT's heads has its own key and value");
  require(layer.kv_channels * layer.num_attention_heads == layer.hidden_size,
          "kv_channels: BERT's heads are hidden_size / num_attention_heads wide");
  require(options.tied_embeddings,
          "untie_embeddings_and_output_weights: BERT's output matrix is its word table");
}

HfJson HfBertConfig(const ModelOptions& options, const HfTokens& tokens) {
  const TransformerOptions& layer = options.transformer;
  HfJson config = {
      {"model_type", layer.post_norm ? "bert" : "megatron-bert"},
      {"architectures", HfJson::array({ClassOf(options)})},
      {"hidden_size", layer.hidden_size},
      {"num_hidden_layers", layer.num_layers},
      {"num_attention_heads", layer.num_attention_heads},
      {"intermediate_size", layer.ffn_hidden_size},
      {"hidden_act", layer.activation == ops::Activation::kGeluErf ? "gelu" : "gelu_new"},
      {"max_position_embeddings", options.max_positions},
      {"type_vocab_size", HfTokenTypes(options)},
      {"layer_norm_eps", ShortestDouble(layer.norm.epsilon)},
      {"position_embedding_type", "absolute"},
      {"pad_token_id", TokenOrNull(tokens.pad)},  // its row gets no gradient there
      {"hidden_dropout_prob", ShortestDouble(layer.hidden_dropout)},
      {"attention_probs_dropout_prob", ShortestDouble(layer.attention_dropout)}};
  if (options.num_classes > 1) config["num_labels"] = options.num_classes;
  return config;
}

}  // namespace megatron
