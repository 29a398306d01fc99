// Converts our options to config.json.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "megatron/models/huggingface/hf_config.h"
#include "megatron/models/huggingface/hf_config_fields.h"
#include "megatron/models/huggingface/hf_decoder.h"
#include "megatron/models/huggingface/hf_families.h"
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

// Refuses options that only some families of decoders have.
void CheckPlain(const ModelOptions& options, Reasons* reasons) {
  const TransformerOptions& layer = options.transformer;
  auto require = [&](bool holds, const char* reason) { Require(holds, reason, reasons); };
  require(!layer.norm.zero_centered_gamma,
          "apply_layernorm_1p: the gain is stored as its difference from one, and adding the one "
          "would round it");
  require(layer.norm.bias, "disable_bias_norm: LayerNorms of gpt2 and bert have biases");
  require(!layer.qk_norm, "qk_layernorm: gpt2, bert and t5 do not normalize queries and keys");
  require(layer.sink == AttentionSink::kNone, "softmax_type: gpt2, bert and t5 have no sinks");
  require(
      !layer.is_latent() && layer.value_size() == layer.kv_channels,
      "multi_latent_attention, v_head_dim: the values of gpt2, bert and t5 are as wide as their "
      "keys");
  require(layer.moe.num_experts == 0, "num_experts: gpt2, bert and t5 have no experts");
  require(!layer.sandwich_norm, "sandwich_norm: gpt2, bert and t5 have one norm for each branch");
  require(options.embedding_scale == 1, "embedding_scale: gpt2, bert and t5 have none");
  require(layer.score_softcap == 0 && options.logit_softcap == 0,
          "attn_logit_softcapping, final_logit_softcapping: gpt2, bert and t5 have no caps");
  require(!layer.reordered_norm, "reordered_norm: gpt2, bert and t5 have norms in other places");
  require(!layer.parallel_residual,
          "parallel_residual: MLPs of gpt2, bert and t5 read what attention has added");
  require(!layer.is_hybrid(),
          "hybrid_layer_pattern: each layer of gpt2, bert and t5 has attention and an MLP");
  require(!layer.output_gate, "attention_output_gate: gpt2, bert and t5 have no gates");
  require(layer.residual_multiplier == 1,
          "residual_multiplier: branches of gpt2, bert and t5 have no factor");
}

void CheckGpt(const ModelOptions& options, Reasons* reasons) {
  Require(options.transformer.causal,
          "attention that is not causal: these are models of the next token", reasons);
  Require(!options.transformer.post_norm, "post_norm: decoders have norms in front", reasons);
  Require(options.num_token_types == 0, "token types: decoders have none", reasons);
  Require(options.transformer.relative_positions.buckets == 0,
          "position_embedding_type relative: only t5 has it", reasons);
  Require(options.mtp_num_layers == 0, "mtp_num_layers: these models predict the next token alone",
          reasons);
  Require(!options.learned_positions || options.output_scale == 1,
          "output_scale: gpt2 has no factor in front of its output matrix", reasons);
  Require(!options.learned_positions || !options.output_bias,
          "add_output_bias: gpt2 has no bias behind its output matrix", reasons);
}

// Refuses options that gpt2 and bert do not have.
void CheckScoresAndGate(const TransformerOptions& layer, Reasons* reasons) {
  auto require = [&](bool holds, const char* reason) { Require(holds, reason, reasons); };
  require(layer.softmax_scale == 0, "softmax_scale: scores are divided by the root of head_dim");
  require(!layer.gated || layer.gate == ops::Activation::kSilu, "a gate that is not SiLU");
  require(layer.has_plain_gate(), "activation_func_clamp_value, or glu_linear_offset");
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

// The family of decoders that a model is, if it is a GPT and no gpt2.
const HfDecoder* DecoderOf(const ModelOptions& options, absl::string_view model_type,
                           Reasons* reasons) {
  const bool is_decoder = options.kind == ModelKind::kGpt && !IsHfGpt2(options, model_type);
  return is_decoder ? ChooseHfDecoder(options, model_type, reasons) : nullptr;
}

Json ModelConfig(const ModelOptions& options, const HfTokens& tokens,
                 absl::string_view model_type) {
  switch (options.kind) {
    case ModelKind::kBert:
      return HfBertConfig(options, tokens);
    case ModelKind::kT5: {
      Json config = HfT5Config(options, model_type == "mt5" ? "mt5" : "t5");
      config.update(HfT5Tokens(tokens));
      return config;
    }
    case ModelKind::kGpt:
      break;
  }
  Reasons reasons;
  const HfDecoder* const family = DecoderOf(options, model_type, &reasons);
  if (family == nullptr) return HfGpt2Config(options);
  Json config = HfDecoderConfig(*family, options);
  // Some families have one of their own where the file names none.
  config["pad_token_id"] = TokenOrNull(tokens.pad);
  return config;
}

}  // namespace

HfJson TokenOrNull(int32_t token) { return token < 0 ? HfJson() : HfJson(token); }

Reasons HfReasonsAgainst(const ModelOptions& options, absl::string_view model_type) {
  const std::vector<std::string> types = HfModelTypes();
  if (!model_type.empty() && std::find(types.begin(), types.end(), model_type) == types.end()) {
    return {absl::StrCat("model_type ", model_type, " is unknown; it must be one of ",
                         absl::StrJoin(types, ", "))};
  }
  Reasons reasons;
  switch (options.kind) {
    case ModelKind::kGpt:
      CheckGpt(options, &reasons);
      if (IsHfGpt2(options, model_type)) {
        CheckPlain(options, &reasons);
        CheckScoresAndGate(options.transformer, &reasons);
        CheckHfGpt2(options, &reasons);
      } else {
        Reasons of_family;
        if (DecoderOf(options, model_type, &of_family) == nullptr)
          reasons.insert(reasons.end(), of_family.begin(), of_family.end());
      }
      break;
    case ModelKind::kBert:
      CheckPlain(options, &reasons);
      CheckScoresAndGate(options.transformer, &reasons);
      CheckHfBert(options, &reasons);
      break;
    case ModelKind::kT5:
      CheckPlain(options, &reasons);
      CheckHfT5(options, &reasons);
      break;
  }
  if (!reasons.empty() || model_type.empty()) return reasons;
  const Json config = ModelConfig(options, HfTokens(), model_type);
  Require(config["model_type"] == model_type,
          absl::StrCat("it is a ", config["model_type"].get<std::string>(), ", not a ", model_type),
          &reasons);
  return reasons;
}

absl::StatusOr<std::string> HfConfigJson(const ModelOptions& options, const HfTokens& tokens,
                                         absl::string_view model_type) {
  const Reasons reasons = HfReasonsAgainst(options, model_type);
  if (!reasons.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("no Hugging Face model", model_type.empty() ? "" : " of this type",
                     " is the same as this one:\n  ", absl::StrJoin(reasons, "\n  ")));
  }
  Json config = Common(options, tokens);
  config.update(ModelConfig(options, tokens, model_type));
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
