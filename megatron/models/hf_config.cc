// From config.json to our options.
#include "megatron/models/hf_config.h"

#include <cmath>
#include <limits>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "megatron/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace megatron {
namespace {

using Json = nlohmann::json;

// Greatest sizes that are read: beyond all models, and their products fit into 64 bits.
constexpr int64_t kMaxLayers = 1 << 12;
constexpr int64_t kMaxHeads = 1 << 14;
constexpr int64_t kMaxWidth = 1 << 22;
constexpr int64_t kMaxIds = std::numeric_limits<int32_t>::max();

// The object in `text`; duplicate keys, at any depth, are errors.
absl::StatusOr<Json> ParseObject(absl::string_view text) {
  if (static_cast<int64_t>(text.size()) > kMaxHfConfigBytes) {
    return absl::DataLossError("is too large for a model's configuration");
  }
  std::vector<std::set<std::string>> keys;  // of the objects around
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

// Takes values out of an object and remembers what was wrong with them.
class Fields {
 public:
  // `prefix` names the object in messages.
  Fields(const Json& json, std::string prefix, std::vector<std::string>* errors)
      : json_(json), prefix_(std::move(prefix)), errors_(*errors) {}

  void Error(const std::string& key, absl::string_view message) const {
    errors_.push_back(absl::StrCat(prefix_, key, ": ", message));
  }

  // Whether it is there and not null.
  bool Has(const std::string& key) const {
    const auto found = json_.find(key);
    return found != json_.end() && !found->is_null();
  }
  bool IsNull(const std::string& key) const {
    const auto found = json_.find(key);
    return found != json_.end() && found->is_null();
  }
  const Json& Get(const std::string& key) const { return *json_.find(key); }

  // An integer from 1 to `max`; 1 after an error.
  int64_t Size(const std::string& key, int64_t max) const {
    if (!Has(key)) {
      Error(key, "is missing");
      return 1;
    }
    const Json& value = Get(key);
    if (value.is_number_unsigned() && value.get<uint64_t>() >= 1 &&
        value.get<uint64_t>() <= static_cast<uint64_t>(max)) {
      return value.get<int64_t>();
    }
    Error(key, absl::StrCat("must be an integer from 1 to ", max));
    return 1;
  }
  int64_t Size(const std::string& key, int64_t max, int64_t otherwise) const {
    return Has(key) ? Size(key, max) : otherwise;
  }

  // A number in [min, max].
  double Number(const std::string& key, double min, double max, double otherwise) const {
    if (!Has(key)) return otherwise;
    const Json& value = Get(key);
    if (value.is_number() && value.get<double>() >= min && value.get<double>() <= max) {
      return value.get<double>();
    }
    Error(key, absl::StrCat("must be a number from ", min, " to ", max));
    return otherwise;
  }

  bool Bool(const std::string& key, bool otherwise) const {
    if (!Has(key)) return otherwise;
    if (Get(key).is_boolean()) return Get(key).get<bool>();
    Error(key, "must be true or false");
    return otherwise;
  }

  std::string Text(const std::string& key, const std::string& otherwise) const {
    if (!Has(key)) return otherwise;
    if (Get(key).is_string()) return Get(key).get<std::string>();
    Error(key, "must be a string");
    return otherwise;
  }

  void Refuse(const std::string& key, bool value, absl::string_view reason) const {
    if (Bool(key, !value) == value) Error(key, reason);
  }

 private:
  const Json& json_;
  std::string prefix_;
  std::vector<std::string>& errors_;
};

float Dropout(const Fields& fields, const std::string& key, double otherwise) {
  return static_cast<float>(fields.Number(key, 0, 1, otherwise));
}

// What changes a model of any type.
void CheckCommon(const Fields& fields, const std::string& architecture) {
  if (fields.Has("quantization_config")) {
    fields.Error("quantization_config", "quantized weights are not read");
  }
  if (fields.Has("auto_map")) fields.Error("auto_map", "the model is defined by code of its own");
  if (!fields.Has("architectures")) return;
  if (fields.Get("architectures") != Json::array({architecture})) {
    fields.Error("architectures", absl::StrCat("must be [\"", architecture, "\"]"));
  }
}

void ReadGpt2(const Fields& fields, GptOptions* options) {
  CheckCommon(fields, "GPT2LMHeadModel");
  TransformerOptions& layer = options->transformer;
  layer.hidden_size = fields.Size("n_embd", kMaxWidth);
  layer.num_layers = fields.Size("n_layer", kMaxLayers);
  layer.num_attention_heads = layer.num_query_groups = fields.Size("n_head", kMaxHeads);
  layer.ffn_hidden_size = fields.Size("n_inner", kMaxWidth, 4 * layer.hidden_size);
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
  options->max_positions = fields.Size("n_positions", kMaxIds);
  options->tied_embeddings = fields.Bool("tie_word_embeddings", true);
  layer.hidden_dropout = Dropout(fields, "resid_pdrop", 0.1);
  layer.attention_dropout = Dropout(fields, "attn_pdrop", 0.1);
}

void ReadRopeScaling(const Fields& rope, RotaryOptions* rotary) {
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
void ReadRope(const Fields& fields, std::vector<std::string>* errors, RotaryOptions* rotary) {
  rotary->base = fields.Number("rope_theta", 1, 1e12, 10000);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!fields.Has(key)) continue;
    if (!fields.Get(key).is_object()) {
      fields.Error(key, "must be an object");
      continue;
    }
    const Fields rope(fields.Get(key), absl::StrCat(key, "."), errors);
    rotary->base = rope.Number("rope_theta", 1, 1e12, rotary->base);
    ReadRopeScaling(rope, rotary);
  }
  if (fields.Number("partial_rotary_factor", 0, 1, 1) != 1) {
    fields.Error("partial_rotary_factor", "all channels of a head are rotated");
  }
}

void ReadHeads(const Fields& fields, TransformerOptions* layer) {
  layer->num_attention_heads = fields.Size("num_attention_heads", kMaxHeads);
  layer->num_query_groups =
      fields.Size("num_key_value_heads", kMaxHeads, layer->num_attention_heads);
  if (layer->num_attention_heads % layer->num_query_groups != 0) {
    fields.Error("num_key_value_heads", "does not divide num_attention_heads");
  }
  if (!fields.Has("head_dim") && layer->hidden_size % layer->num_attention_heads != 0) {
    fields.Error("num_attention_heads", "does not divide hidden_size");
  }
  layer->kv_channels =
      fields.Size("head_dim", kMaxWidth, layer->hidden_size / layer->num_attention_heads);
  if (layer->kv_channels % 2 != 0 || layer->kv_channels * layer->num_attention_heads > kMaxWidth) {
    fields.Error("head_dim", "is odd, or too large");
  }
}

// The window matters where it is shorter than the positions.
void CheckWindow(const Fields& fields, const std::string& type, int64_t positions) {
  if (type == "llama" || (type == "qwen2" && !fields.Bool("use_sliding_window", false))) return;
  if (fields.IsNull("sliding_window")) return;
  constexpr int64_t kDefault = 4096;
  if (fields.Size("sliding_window", kMaxIds, kDefault) < positions) {
    fields.Error("sliding_window",
                 "attention sees all that came before; null turns the window off");
  }
}

void ReadLlama(const Fields& fields, const std::string& type, std::vector<std::string>* errors,
               GptOptions* options) {
  CheckCommon(fields, type == "llama"     ? "LlamaForCausalLM"
                      : type == "mistral" ? "MistralForCausalLM"
                                          : "Qwen2ForCausalLM");
  TransformerOptions& layer = options->transformer;
  layer.hidden_size = fields.Size("hidden_size", kMaxWidth);
  layer.num_layers = fields.Size("num_hidden_layers", kMaxLayers);
  layer.ffn_hidden_size = fields.Size("intermediate_size", kMaxWidth);
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
  options->max_positions = fields.Size("max_position_embeddings", kMaxIds);
  CheckWindow(fields, type, options->max_positions);
  options->tied_embeddings = fields.Bool("tie_word_embeddings", false);
  layer.attention_dropout = Dropout(fields, "attention_dropout", 0);
  layer.hidden_dropout = 0;
}

}  // namespace

absl::StatusOr<GptOptions> ParseHfConfig(absl::string_view text) {
  MEGATRON_ASSIGN_OR_RETURN(const Json json, ParseObject(text));
  std::vector<std::string> errors;
  const Fields fields(json, "", &errors);
  GptOptions options;
  options.vocab_size = options.padded_vocab_size = fields.Size("vocab_size", kMaxIds);
  options.transformer.init_std = options.transformer.output_init_std = options.embedding_init_std =
      static_cast<float>(fields.Number("initializer_range", 0, 1e3, 0.02));
  const std::string type = fields.Text("model_type", "");
  if (type == "gpt2") {
    ReadGpt2(fields, &options);
  } else if (type == "llama" || type == "mistral" || type == "qwen2") {
    ReadLlama(fields, type, &errors, &options);
  } else {
    fields.Error("model_type", "must be gpt2, llama, mistral or qwen2");
  }
  if (errors.empty()) return options;
  return absl::InvalidArgumentError(absl::StrCat(
      "this model is not one that can be expressed here:\n  ", absl::StrJoin(errors, "\n  ")));
}

}  // namespace megatron
