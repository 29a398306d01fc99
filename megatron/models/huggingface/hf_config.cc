// Converts config.json to our options.
#include "megatron/models/huggingface/hf_config.h"

#include <cmath>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "megatron/base/status_macros.h"
#include "megatron/models/huggingface/hf_config_fields.h"
#include "nlohmann/json.hpp"

namespace megatron {
namespace {

using Json = HfJson;

// The object in `text`; duplicate keys, at any depth, are errors.
absl::StatusOr<Json> ParseObject(absl::string_view text) {
  if (static_cast<int64_t>(text.size()) > kMaxHfConfigBytes) {
    return absl::DataLossError("is too large for a model's configuration");
  }
  std::vector<std::set<std::string>> keys;  // keys of the enclosing objects
  std::string duplicate;
  auto check = [&](int, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key &&
        !keys.back().insert(parsed.get<std::string>()).second) {
      duplicate = parsed.get<std::string>();
    }
    return true;
  };
  // The parser takes a zero byte for the end of the text.
  const bool has_zero = text.find('\0') != absl::string_view::npos;
  Json json = has_zero ? Json(Json::value_t::discarded)
                       : Json::parse(text.begin(), text.end(), check, /*allow_exceptions=*/false);
  if (!json.is_object()) return absl::DataLossError("is no JSON object");
  if (!duplicate.empty()) {
    return absl::DataLossError(absl::StrCat("has two '", absl::CHexEscape(duplicate), "'"));
  }
  return json;
}

void ReadGpt2(const HfFields& fields, ModelOptions* options) {
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
  layer.attention_dropout = HfDropout(fields, "attn_pdrop", 0.1);
}

void ReadRopeScaling(const HfFields& rope, RotaryOptions* rotary) {
  const std::string type = rope.Text("rope_type", rope.Text("type", "default"));
  const double factor = rope.Number("factor", 1, 1e6, 0);
  if (type == "default") return;
  if (type != "linear" && type != "llama3") {
    rope.Error("rope_type", "must be default, linear or llama3");
  } else if (factor == 0) {
    rope.Error("factor", "is missing");
  } else if (type == "linear") {
    rotary->interpolation_factor = factor;
  } else {
    rotary->scaling_factor = factor;
    if (rope.Number("low_freq_factor", 0, 1e6, 0) != 1 ||
        rope.Number("high_freq_factor", 0, 1e6, 0) != 4 ||
        rope.Number("original_max_position_embeddings", 0, 1e9, 0) != 8192) {
      rope.Error("rope_type",
                 "low_freq_factor, high_freq_factor and "
                 "original_max_position_embeddings must be 1, 4 and 8192");
    }
  }
}

// Newer files have all of it in rope_parameters.
void ReadRope(const HfFields& fields, std::vector<std::string>* errors, RotaryOptions* rotary) {
  rotary->base = fields.Number("rope_theta", 1, 1e12, 10000);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!fields.Has(key)) continue;
    if (!fields.Get(key).is_object()) {
      fields.Error(key, "must be an object");
      continue;
    }
    const HfFields rope(fields.Get(key), absl::StrCat(key, "."), errors);
    rotary->base = rope.Number("rope_theta", 1, 1e12, rotary->base);
    ReadRopeScaling(rope, rotary);
  }
  if (fields.Number("partial_rotary_factor", 0, 1, 1) != 1) {
    fields.Error("partial_rotary_factor", "all channels of a head are rotated");
  }
}

void ReadHeads(const HfFields& fields, TransformerOptions* layer) {
  layer->num_attention_heads = fields.Size("num_attention_heads", kMaxHfHeads);
  layer->num_query_groups =
      fields.Size("num_key_value_heads", kMaxHfHeads, layer->num_attention_heads);
  if (layer->num_attention_heads % layer->num_query_groups != 0) {
    fields.Error("num_key_value_heads", "does not divide num_attention_heads");
  }
  if (!fields.Has("head_dim") && layer->hidden_size % layer->num_attention_heads != 0) {
    fields.Error("num_attention_heads", "does not divide hidden_size");
  }
  layer->kv_channels =
      fields.Size("head_dim", kMaxHfWidth, layer->hidden_size / layer->num_attention_heads);
  if (layer->kv_channels % 2 != 0 ||
      layer->kv_channels * layer->num_attention_heads > kMaxHfWidth) {
    fields.Error("head_dim", "is odd, or too large");
  }
}

// The window matters where it is shorter than the positions. Theirs has the position itself.
void ReadWindow(const HfFields& fields, const std::string& type, int64_t positions,
                TransformerOptions* layer) {
  if (type == "llama" || (type == "qwen2" && !fields.Bool("use_sliding_window", false))) return;
  if (fields.IsNull("sliding_window")) return;
  constexpr int64_t kDefault = 4096;
  const int64_t window = fields.Size("sliding_window", kMaxHfIds, kDefault);
  if (window >= positions) return;
  if (type == "mistral" && window > 1) {
    layer->window_size = window - 1;
  } else {
    fields.Error("sliding_window",
                 type == "mistral"
                     ? "must be at least 2"
                     : "qwen2's attention sees all that came before here; use_sliding_window: "
                       "false turns the window off");
  }
}

void ReadLlama(const HfFields& fields, const std::string& type, std::vector<std::string>* errors,
               ModelOptions* options) {
  CheckCommonHfFields(fields, type == "llama"     ? "LlamaForCausalLM"
                              : type == "mistral" ? "MistralForCausalLM"
                                                  : "Qwen2ForCausalLM");
  TransformerOptions& layer = options->transformer;
  layer.hidden_size = fields.Size("hidden_size", kMaxHfWidth);
  layer.num_layers = fields.Size("num_hidden_layers", kMaxHfLayers);
  layer.ffn_hidden_size = fields.Size("intermediate_size", kMaxHfWidth);
  if (type != "llama" && !fields.Has("num_key_value_heads")) {
    fields.Error("num_key_value_heads", "is missing");
  }
  ReadHeads(fields, &layer);
  if (type == "qwen2" && layer.kv_channels * layer.num_attention_heads != layer.hidden_size) {
    fields.Error("head_dim",
                 "must be hidden_size / num_attention_heads: not all versions of "
                 "transformers heed it in qwen2");
  }
  layer.norm.kind = ops::Norm::kRmsNorm;
  layer.norm.epsilon = static_cast<float>(fields.Number("rms_norm_eps", 0, 1, 1e-6));
  if (fields.Text("hidden_act", "silu") != "silu") fields.Error("hidden_act", "must be silu");
  layer.gated = true;
  layer.rotary = true;
  ReadRope(fields, errors, &layer.rotary_options);
  layer.linear_bias = type == "llama" && fields.Bool("attention_bias", false);
  if (type == "llama" && fields.Bool("mlp_bias", false) != layer.linear_bias) {
    fields.Error("attention_bias",
                 "must be as mlp_bias: here biases are on all projections, on "
                 "those of q, k and v, or on none");
  }
  layer.qkv_bias = layer.linear_bias || type == "qwen2";
  options->learned_positions = false;
  options->max_positions = fields.Size("max_position_embeddings", kMaxHfIds);
  ReadWindow(fields, type, options->max_positions, &layer);
  options->tied_embeddings = fields.Bool("tie_word_embeddings", false);
  layer.attention_dropout = HfDropout(fields, "attention_dropout", 0);
  layer.hidden_dropout = 0;
}

}  // namespace

absl::StatusOr<ModelOptions> ParseHfConfig(absl::string_view text) {
  MEGATRON_ASSIGN_OR_RETURN(const Json json, ParseObject(text));
  std::vector<std::string> errors;
  const HfFields fields(json, "", &errors);
  ModelOptions options;
  options.vocab_size = options.padded_vocab_size = fields.Size("vocab_size", kMaxHfIds);
  options.transformer.init_std = options.transformer.output_init_std = options.embedding_init_std =
      static_cast<float>(fields.Number("initializer_range", 0, 1e3, 0.02));
  const std::string type = fields.Text("model_type", "");
  if (type == "gpt2") {
    ReadGpt2(fields, &options);
  } else if (type == "llama" || type == "mistral" || type == "qwen2") {
    ReadLlama(fields, type, &errors, &options);
  } else if (type == "bert" || type == "megatron-bert") {
    ReadHfBert(fields, type, &options);
  } else if (type == "t5") {
    ReadHfT5(fields, &options);
  } else {
    fields.Error("model_type", "must be gpt2, llama, mistral, qwen2, bert, megatron-bert or t5");
  }
  if (errors.empty()) return options;
  return absl::InvalidArgumentError(absl::StrCat(
      "this model is not one that can be expressed here:\n  ", absl::StrJoin(errors, "\n  ")));
}

absl::StatusOr<HfTokens> ParseHfTokens(absl::string_view text, int64_t vocab_size) {
  MEGATRON_ASSIGN_OR_RETURN(const Json json, ParseObject(text));
  const auto id = [&](const char* key) {
    const auto found = json.find(key);
    if (found == json.end()) return -1;
    const Json& value = found->is_array() && !found->empty() ? found->front() : *found;
    const bool is_id =
        value.is_number_unsigned() && value.get<uint64_t>() < static_cast<uint64_t>(vocab_size);
    return is_id ? value.get<int32_t>() : -1;
  };
  return HfTokens{id("bos_token_id"), id("eos_token_id"), id("pad_token_id")};
}

}  // namespace megatron
