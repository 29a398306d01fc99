// T5's config.json, and that of mT5, which is a T5 with other defaults.
#include <algorithm>
#include <cmath>
#include <string>

#include "megatron/models/huggingface/hf_families.h"

namespace megatron {
namespace {

struct FeedForward {
  const char* name;
  bool gated;
  ops::Activation activation;
  const char* function;  // its name there, which newer files have beside `name`
};

constexpr FeedForward kFeedForwards[] = {
    {"relu", false, ops::Activation::kRelu, "relu"},
    {"gelu", false, ops::Activation::kGeluErf, "gelu"},
    {"gelu_new", false, ops::Activation::kGeluTanh, "gelu_new"},
    {"silu", false, ops::Activation::kSilu, "silu"},
    {"gated-relu", true, ops::Activation::kRelu, "relu"},
    {"gated-gelu", true, ops::Activation::kGeluTanh, "gelu_new"},  // whatever "gelu" is elsewhere
    {"gated-gelu_new", true, ops::Activation::kGeluTanh, "gelu_new"},
    {"gated-silu", true, ops::Activation::kSilu, "silu"},
};

// Returns null where there is none.
const FeedForward* FeedForwardOf(const TransformerOptions& layer) {
  const ops::Activation activation = layer.gated ? layer.gate : layer.activation;
  if (!layer.has_plain_gate()) return nullptr;
  for (const FeedForward& candidate : kFeedForwards) {
    if (candidate.gated == layer.gated && candidate.activation == activation) return &candidate;
  }
  return nullptr;
}

void ReadFeedForward(const HfFields& fields, const std::string& otherwise,
                     TransformerOptions* layer) {
  const std::string name = fields.Text("feed_forward_proj", otherwise);
  for (const FeedForward& candidate : kFeedForwards) {
    if (name != candidate.name) continue;
    layer->gated = candidate.gated;
    (layer->gated ? layer->gate : layer->activation) = candidate.activation;
    // The field that transformers reads where the two differ.
    if (fields.Text("dense_act_fn", candidate.function) != candidate.function)
      fields.Error("dense_act_fn", absl::StrCat("must be ", candidate.function, " with ", name));
    if (fields.Bool("is_gated_act", candidate.gated) != candidate.gated)
      fields.Error("is_gated_act", absl::StrCat("disagrees with ", name));
    return;
  }
  fields.Error("feed_forward_proj",
               absl::StrCat("must be relu, gelu, gelu_new or silu, or gated-relu, gated-gelu, "
                            "gated-gelu_new or gated-silu, and is ",
                            name.substr(0, 64)));
}

void ReadPositions(const HfFields& fields, RelativePositionOptions* positions) {
  constexpr int64_t kMaxDistance = 1 << 20;
  positions->buckets = fields.Size("relative_attention_num_buckets", kMaxHfHeads, 32);
  if (positions->buckets % 2 != 0 || positions->buckets < 4)
    fields.Error("relative_attention_num_buckets", "must be even and at least 4");
  positions->max_distance = fields.Size("relative_attention_max_distance", kMaxDistance, 128);
  if (positions->max_distance <= positions->buckets / 2) {
    fields.Error("relative_attention_max_distance",
                 "must be more than half of relative_attention_num_buckets");
  }
}

float TiedScale(int64_t hidden_size) {
  return static_cast<float>(1 / std::sqrt(static_cast<double>(hidden_size)));
}

const char* ArchitectureOf(absl::string_view type) {
  return type == "mt5" ? "MT5ForConditionalGeneration" : "T5ForConditionalGeneration";
}

}  // namespace

void ReadHfT5(const HfFields& fields, const std::string& type, ModelOptions* options) {
  CheckCommonHfFields(fields, ArchitectureOf(type));
  const bool multilingual = type == "mt5";
  TransformerOptions& layer = options->transformer;
  layer.hidden_size = fields.Size("d_model", kMaxHfWidth);
  layer.kv_channels = fields.Size("d_kv", kMaxHfWidth, 64);
  layer.ffn_hidden_size = fields.Size("d_ff", kMaxHfWidth);
  layer.num_attention_heads = layer.num_query_groups = fields.Size("num_heads", kMaxHfHeads);
  if (layer.kv_channels * layer.num_attention_heads > kMaxHfWidth)
    fields.Error("d_kv", "is too large");
  options->kind = ModelKind::kT5;
  options->num_encoder_layers = fields.Size("num_layers", kMaxHfLayers);
  layer.num_layers = fields.Size("num_decoder_layers", kMaxHfLayers, options->num_encoder_layers);
  layer.norm.kind = ops::Norm::kRmsNorm;
  layer.norm.epsilon = static_cast<float>(fields.Number("layer_norm_epsilon", 0, 1, 1e-6));
  layer.linear_bias = layer.qkv_bias = false;
  layer.softmax_scale = 1;
  ReadFeedForward(fields, multilingual ? "gated-gelu" : "relu", &layer);
  ReadPositions(fields, &layer.relative_positions);
  fields.Refuse("is_encoder_decoder", false, "an encoder alone is not a model here");
  options->learned_positions = false;
  options->max_positions = fields.Size("n_positions", kMaxHfIds, 512);
  options->tied_embeddings = fields.Bool("tie_word_embeddings", !multilingual);
  if (options->tied_embeddings) options->output_scale = TiedScale(layer.hidden_size);
  layer.hidden_dropout = layer.attention_dropout = HfDropout(fields, "dropout_rate", 0.1);
}

void CheckHfT5(const ModelOptions& options, HfReasons* reasons) {
  const TransformerOptions& layer = options.transformer;
  auto require = [&](bool holds, const char* reason) {
    if (!holds) reasons->push_back(reason);
  };
  require(layer.norm.kind == ops::Norm::kRmsNorm, "normalization LayerNorm: T5 has RMSNorm");
  require(!layer.linear_bias && !layer.qkv_bias && !options.output_bias,
          "biases: T5 has none, nor at its output");
  require(!options.learned_positions && !layer.rotary && layer.relative_positions.buckets > 0,
          "position_embedding_type: T5's positions are relative");
  require(layer.softmax_scale == 1, "softmax_scale: T5 does not scale scores");
  require(FeedForwardOf(layer) != nullptr, "activation_func: T5 does not have it");
  require(layer.num_query_groups == layer.num_attention_heads,
          "num_query_groups: each of T5's heads has its own key and value");
  require(options.output_scale == (options.tied_embeddings ? TiedScale(layer.hidden_size) : 1.0f),
          "the scale in front of the output matrix: T5 has 1 / sqrt(hidden_size) where the matrix "
          "is the word table, else none");
}

HfJson HfT5Tokens(const HfTokens& tokens) {
  const int32_t pad = std::max(tokens.pad, 0);
  return {{"pad_token_id", pad}, {"decoder_start_token_id", tokens.bos >= 0 ? tokens.bos : pad}};
}

HfJson HfT5Config(const ModelOptions& options, absl::string_view type) {
  const TransformerOptions& layer = options.transformer;
  return {{"model_type", std::string(type)},
          {"architectures", HfJson::array({ArchitectureOf(type)})},
          {"is_encoder_decoder", true},
          {"d_model", layer.hidden_size},
          {"d_kv", layer.kv_channels},
          {"d_ff", layer.ffn_hidden_size},
          {"num_layers", options.num_encoder_layers},
          {"num_decoder_layers", layer.num_layers},
          {"num_heads", layer.num_attention_heads},
          {"feed_forward_proj", FeedForwardOf(layer)->name},
          {"relative_attention_num_buckets", layer.relative_positions.buckets},
          {"relative_attention_max_distance", layer.relative_positions.max_distance},
          {"layer_norm_epsilon", ShortestDouble(layer.norm.epsilon)},
          {"n_positions", options.max_positions},
          {"dropout_rate", ShortestDouble(layer.hidden_dropout)}};
}

}  // namespace megatron
