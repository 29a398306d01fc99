// Converts config.json to our options.
#include "megatron/models/huggingface/hf_config.h"

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "megatron/base/json_error.h"
#include "megatron/base/status_macros.h"
#include "megatron/models/huggingface/hf_config_fields.h"
#include "megatron/models/huggingface/hf_decoder.h"
#include "megatron/models/huggingface/hf_families.h"
#include "nlohmann/json.hpp"

namespace megatron {
namespace {

using Json = HfJson;

constexpr absl::string_view kInfinity = "Infinity";

// Returns the text with null in place of Infinity, which is no JSON. transformers writes it where a
// number has no upper limit. Blanks fill up the place, so that positions stay what they are.
std::string WithoutInfinity(absl::string_view text) {
  std::string result;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '"') in_string = !in_string;
    if (in_string && text[i] == '\\' && i + 1 < text.size()) result += text[i++];
    const bool is_infinity = !in_string && text.substr(i, kInfinity.size()) == kInfinity &&
                             (i == 0 || text[i - 1] != '-');
    if (is_infinity) {
      result += "null    ";
      i += kInfinity.size() - 1;
    } else {
      result += text[i];
    }
  }
  return result;
}

// The object in `text`; duplicate keys, at any depth, are errors.
absl::StatusOr<Json> ParseObject(absl::string_view original) {
  const std::string text = WithoutInfinity(original);
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
  if (json.is_discarded())
    return absl::DataLossError(absl::StrCat("is no JSON: ", FirstJsonError(text)));
  if (!json.is_object()) return absl::DataLossError("is no JSON object");
  if (!duplicate.empty()) {
    return absl::DataLossError(absl::StrCat("has two '", absl::CHexEscape(duplicate), "'"));
  }
  return json;
}

// Model types whose layers are close to those of known families, and what they have that is not
// here.
constexpr std::pair<absl::string_view, absl::string_view> kMissingParts[] = {
    {"falcon_h1", "a layer has attention and a mixer side by side"},
    {"falcon_mamba", "its mixers are those of the first Mamba"},
    {"jamba", "its mixers are those of the first Mamba"},
    {"mamba", "its mixers are those of the first Mamba"},
    {"lfm2", "its layers have gated convolutions in place of a mixer"},
    {"nemotron_h", "transformers 4.57 does not have it, so that nothing can be compared"},
    {"zamba", "layers share the weights of their attention"},
    {"zamba2", "layers share the weights of their attention"},
};

// Returns why models of the type are not read.
std::string ReasonAgainst(absl::string_view model_type) {
  for (const auto& [type, reason] : kMissingParts) {
    if (model_type == type) return absl::StrCat(type, " is not read: ", reason);
  }
  return absl::StrCat("must be one of ", absl::StrJoin(HfModelTypes(), ", "));
}

}  // namespace

std::vector<std::string> HfModelTypes() {
  std::vector<std::string> names = {"gpt2", "bert", "megatron-bert", "t5", "mt5"};
  for (const HfDecoder& family : HfDecoders()) names.push_back(family.model_type);
  return names;
}

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
    ReadHfGpt2(fields, &options);
  } else if (const HfDecoder* family = FindHfDecoder(type)) {
    ReadHfDecoder(*family, fields, &options);
  } else if (type == "bert" || type == "megatron-bert") {
    ReadHfBert(fields, type, &options);
  } else if (type == "t5" || type == "mt5") {
    ReadHfT5(fields, type, &options);
  } else {
    fields.Error("model_type", ReasonAgainst(type));
  }
  // Each of a family's parts may be known here, and together be no model that is written.
  if (errors.empty()) errors = HfReasonsAgainst(options, type);
  if (errors.empty()) return options;
  return absl::InvalidArgumentError(absl::StrCat(
      "this model is not one that can be expressed here:\n  ", absl::StrJoin(errors, "\n  ")));
}

absl::StatusOr<std::string> ParseHfModelType(absl::string_view text) {
  MEGATRON_ASSIGN_OR_RETURN(const Json json, ParseObject(text));
  std::vector<std::string> errors;
  return HfFields(json, "", &errors).Text("model_type", "");
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
