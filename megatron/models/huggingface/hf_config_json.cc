// Converts our options to config.json.
#include <charconv>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "megatron/models/huggingface/hf_config.h"
#include "megatron/models/huggingface/hf_config_fields.h"
#include "nlohmann/json.hpp"

namespace megatron {
namespace {

using Json = HfJson;
using Reasons = HfReasons;

const char* TorchName(DType dtype) {
  switch (dtype) {
    case DType::kBFloat16:
      return "bfloat16";
    case DType::kFloat16:
      return "float16";
    default:
      return "float32";
  }
}

void Require(bool holds, const std::string& reason, Reasons* reasons) {
  if (!holds) reasons->push_back(reason);
}

// Refuses options that neither architecture has.
void CheckCommon(const ModelOptions& options, Reasons* reasons) {
  const TransformerOptions& layer = options.transformer;
  Require(!layer.norm.zero_centered_gamma,
          "apply_layernorm_1p: the gain is stored as its difference from one, and adding the one "
          "would round it",
          reasons);
  Require(!layer.qk_norm, "qk_layernorm: gpt2, llama and qwen2 do not normalize queries and keys",
          reasons);
  Require(layer.sink == AttentionSink::kNone,
          "softmax_type: of Hugging Face's models with sinks none is written here", reasons);
  Require(layer.moe.num_experts == 0,
          "num_experts: of Hugging Face's models with experts none is written here", reasons);
}

void CheckGpt(const ModelOptions& options, Reasons* reasons) {
  Require(options.transformer.causal,
          "attention that is not causal: these are models of the next token", reasons);
  Require(!options.transformer.post_norm, "post_norm: gpt2 and llama have norms in front", reasons);
  Require(options.num_token_types == 0, "token types: gpt2 and llama have none", reasons);
}

// Refuses options that no model there but T5 has.
void CheckNotT5(const ModelOptions& options, Reasons* reasons) {
  const TransformerOptions& layer = options.transformer;
  auto require = [&](bool holds, const char* reason) { Require(holds, reason, reasons); };
  require(
      layer.relative_positions.buckets == 0,
      "position_embedding_type relative: of Hugging Face's models that are written here only t5 "
      "has it");
  require(layer.softmax_scale == 0, "softmax_scale: scores are divided by the root of head_dim");
  require(options.output_scale == 1, "a scale in front of the output matrix");
  require(!options.output_bias || options.kind == ModelKind::kBert,
          "a bias behind the output matrix");
  require(!layer.gated || layer.gate == ops::Activation::kSilu, "a gate that is not SiLU");
  require(layer.has_plain_gate(), "activation_func_clamp_value, or glu_linear_offset");
}

void CheckGpt2(const ModelOptions& options, Reasons* reasons) {
  const TransformerOptions& layer = options.transformer;
  auto require = [&](bool holds, const char* reason) { Require(holds, reason, reasons); };
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

bool IsQwen2(const ModelOptions& options) {
  return options.transformer.qkv_bias && !options.transformer.linear_bias;
}

bool IsMistral(const ModelOptions& options) { return options.transformer.window_size > 0; }

void CheckLlama(const ModelOptions& options, Reasons* reasons) {
  const TransformerOptions& layer = options.transformer;
  const RotaryOptions& rotary = layer.rotary_options;
  auto require = [&](bool holds, const char* reason) { Require(holds, reason, reasons); };
  require(layer.rotary, "position_embedding_type none: llama's positions are rotary");
  require(layer.norm.kind == ops::Norm::kRmsNorm,
          "normalization LayerNorm with rotary positions: llama has RMSNorm");
  require(layer.gated, "no swiglu with rotary positions: llama's MLP is gated");
  require(rotary.percent == 1, "rotary_percent: llama rotates all channels of a head");
  require(rotary.interpolation_factor == 1 || rotary.scaling_factor == 0,
          "rotary_seq_len_interpolation_factor and use_rope_scaling together: rope_scaling is one "
          "or the other");
  require(rotary.yarn.factor == 0,
          "position_embedding_type yarn: versions of transformers read its rope_scaling in "
          "different ways");
  require(layer.rotary_layers.empty(), "no_rope_freq: llama rotates in all layers");
  require(rotary.local_base == 0, "rotary_base_local: mistral has one base");
  require(layer.window_layers.empty(),
          "window_attn_skip_freq: all of mistral's layers see a window, and none of llama's");
  require(!IsMistral(options) || !layer.qkv_bias,
          "window_size with biases: of these models mistral has windows, and no biases");
  require(!IsMistral(options) || (rotary.interpolation_factor == 1 && rotary.scaling_factor == 0),
          "window_size with scaled rotary positions: not all versions of transformers heed "
          "mistral's rope_scaling");
  require(!IsQwen2(options) || layer.kv_channels * layer.num_attention_heads == layer.hidden_size,
          "kv_channels with add_qkv_bias: qwen2's heads are hidden_size / num_attention_heads wide "
          "(transformers before 4.48 ignores its head_dim)");
}

Json RopeScaling(const RotaryOptions& rotary) {
  if (rotary.scaling_factor > 0) {
    return {{"rope_type", "llama3"},
            {"factor", rotary.scaling_factor},
            {"low_freq_factor", 1.0},
            {"high_freq_factor", 4.0},
            {"original_max_position_embeddings", 8192}};
  }
  if (rotary.interpolation_factor != 1) {
    return {{"rope_type", "linear"}, {"factor", rotary.interpolation_factor}};
  }
  return nullptr;
}

Json Common(const ModelOptions& options, const HfTokens& tokens) {
  return {{"vocab_size", options.vocab_size},
          {"initializer_range", ShortestDouble(options.transformer.init_std)},
          {"tie_word_embeddings", options.tied_embeddings},
          {"torch_dtype", TorchName(options.transformer.dtype)},
          {"use_cache", true},
          {"bos_token_id", TokenOrNull(tokens.bos)},
          {"eos_token_id", TokenOrNull(tokens.eos)}};
}

Json Gpt2Config(const ModelOptions& options) {
  const TransformerOptions& layer = options.transformer;
  return {
      {"model_type", "gpt2"},
      {"architectures", Json::array({"GPT2LMHeadModel"})},
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

Json LlamaConfig(const ModelOptions& options) {
  const TransformerOptions& layer = options.transformer;
  const bool qwen = IsQwen2(options), mistral = IsMistral(options);
  const char* const type = qwen ? "qwen2" : mistral ? "mistral" : "llama";
  const char* const architecture = qwen      ? "Qwen2ForCausalLM"
                                   : mistral ? "MistralForCausalLM"
                                             : "LlamaForCausalLM";
  Json config = {{"model_type", type},
                 {"architectures", Json::array({architecture})},
                 {"max_position_embeddings", options.max_positions},
                 {"hidden_size", layer.hidden_size},
                 {"intermediate_size", layer.ffn_hidden_size},
                 {"num_hidden_layers", layer.num_layers},
                 {"num_attention_heads", layer.num_attention_heads},
                 {"num_key_value_heads", layer.num_query_groups},
                 {"head_dim", layer.kv_channels},
                 {"hidden_act", "silu"},
                 {"rms_norm_eps", ShortestDouble(layer.norm.epsilon)},
                 {"rope_theta", layer.rotary_options.base},
                 {"rope_scaling", RopeScaling(layer.rotary_options)},
                 {"attention_dropout", ShortestDouble(layer.attention_dropout)}};
  if (qwen) {
    config["use_sliding_window"] = false;
  } else if (mistral) {
    config["sliding_window"] = layer.window_size + 1;
  } else {
    config["attention_bias"] = config["mlp_bias"] = layer.linear_bias;
  }
  return config;
}

// Returns why no model of Hugging Face's is the same; nothing if there is one.
Reasons ReasonsAgainst(const ModelOptions& options) {
  Reasons reasons;
  CheckCommon(options, &reasons);
  switch (options.kind) {
    case ModelKind::kGpt:
      CheckNotT5(options, &reasons);
      CheckGpt(options, &reasons);
      (options.learned_positions ? CheckGpt2 : CheckLlama)(options, &reasons);
      break;
    case ModelKind::kBert:
      CheckNotT5(options, &reasons);
      CheckHfBert(options, &reasons);
      break;
    case ModelKind::kT5:
      CheckHfT5(options, &reasons);
      break;
  }
  return reasons;
}

}  // namespace

double ShortestDouble(float value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof(text) - 1, value).ptr;
  *end = '\0';
  return std::strtod(text, nullptr);
}

HfJson TokenOrNull(int32_t token) { return token < 0 ? HfJson() : HfJson(token); }

absl::StatusOr<std::string> HfConfigJson(const ModelOptions& options, const HfTokens& tokens) {
  const Reasons reasons = ReasonsAgainst(options);
  if (!reasons.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "no Hugging Face model is the same as this one:\n  ", absl::StrJoin(reasons, "\n  ")));
  }
  Json config = Common(options, tokens);
  switch (options.kind) {
    case ModelKind::kGpt:
      config.update(options.learned_positions ? Gpt2Config(options) : LlamaConfig(options));
      break;
    case ModelKind::kBert:
      config.update(HfBertConfig(options, tokens));
      break;
    case ModelKind::kT5:
      config.update(HfT5Tokens(tokens));
      config.update(HfT5Config(options));
      break;
  }
  return config.dump(2) + "\n";
}

std::string HfGenerationConfigJson(const ModelOptions& options, const HfTokens& tokens) {
  Json config = {{"_from_model_config", true},
                 {"bos_token_id", TokenOrNull(tokens.bos)},
                 {"eos_token_id", TokenOrNull(tokens.eos)}};
  if (options.kind == ModelKind::kT5) config.update(HfT5Tokens(tokens));
  return config.dump(2) + "\n";
}

}  // namespace megatron
