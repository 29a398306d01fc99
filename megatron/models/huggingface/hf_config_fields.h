// The values of a config.json, read one by one, and what is wrong with them; see hf_config.h.
#ifndef MEGATRON_MODELS_HUGGINGFACE_HF_CONFIG_FIELDS_H_
#define MEGATRON_MODELS_HUGGINGFACE_HF_CONFIG_FIELDS_H_

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace megatron {

using HfJson = nlohmann::json;

// The greatest sizes that are read. No model reaches them, and their products fit into 64 bits.
inline constexpr int64_t kMaxHfLayers = 1 << 12;
inline constexpr int64_t kMaxHfHeads = 1 << 14;
inline constexpr int64_t kMaxHfWidth = 1 << 22;
inline constexpr int64_t kMaxHfIds = std::numeric_limits<int32_t>::max();

// Takes values out of an object and remembers what was wrong with them.
class HfFields {
 public:
  // `prefix` names the object in messages.
  HfFields(const HfJson& json, std::string prefix, std::vector<std::string>* errors)
      : json_(json), prefix_(std::move(prefix)), errors_(*errors) {}

  void Error(const std::string& key, absl::string_view message) const {
    errors_.push_back(absl::StrCat(prefix_, key, ": ", message));
  }

  // Returns whether the field is there and not null.
  bool Has(const std::string& key) const {
    const auto found = json_.find(key);
    return found != json_.end() && !found->is_null();
  }
  bool IsNull(const std::string& key) const {
    const auto found = json_.find(key);
    return found != json_.end() && found->is_null();
  }
  const HfJson& Get(const std::string& key) const { return *json_.find(key); }
  // The fields of the object under `key`, which is one.
  HfFields Object(const std::string& key) const {
    return HfFields(Get(key), prefix_ + key + ".", &errors_);
  }

  // An integer from 1 to `max`; 1 after an error.
  int64_t Size(const std::string& key, int64_t max) const {
    if (!Has(key)) {
      Error(key, "is missing");
      return 1;
    }
    const HfJson& value = Get(key);
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
    const HfJson& value = Get(key);
    if (value.is_number() && value.get<double>() >= min && value.get<double>() <= max) {
      return value.get<double>();
    }
    Error(key, absl::StrCat("must be a number from ", min, " to ", max));
    return otherwise;
  }

  // A null is false, and not `otherwise`: transformers gives a model None in place of the default,
  // and takes None for false. Of a number or a text a null is `otherwise`, as there, where it does
  // not stop the program.
  bool Bool(const std::string& key, bool otherwise) const {
    if (IsNull(key)) return false;
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

  // Returns for each of the layers whether its entry of layer_types is `type`. The others are
  // `other`. Where there is no such list it is `otherwise`, one for each layer.
  std::vector<bool> LayersOfType(const char* type, const char* other,
                                 const std::vector<bool>& otherwise) const {
    if (!Has("layer_types")) return otherwise;
    const HfJson& types = Get("layer_types");
    if (!types.is_array() || types.size() != otherwise.size()) {
      Error("layer_types", "must be a list with an entry for each layer");
      return otherwise;
    }
    std::vector<bool> layers;
    bool holds = true;
    for (const HfJson& entry : types) {
      holds &= entry == type || entry == other;
      layers.push_back(entry == type);
    }
    if (!holds) Error("layer_types", absl::StrCat("must be ", type, " and ", other));
    return layers;
  }

  void Refuse(const std::string& key, bool value, absl::string_view reason) const {
    if (Bool(key, !value) == value) Error(key, reason);
  }

 private:
  const HfJson& json_;
  std::string prefix_;
  std::vector<std::string>& errors_;
};

inline float HfDropout(const HfFields& fields, const std::string& key, double otherwise) {
  return static_cast<float>(fields.Number(key, 0, 1, otherwise));
}

// Refuses a dropout of the embedding, `otherwise` where `key` is not there, that is not `branches`,
// the one that `branches_key` names: here one number is both.
inline void CheckHfEmbeddingDropout(const HfFields& fields, const std::string& key,
                                    double otherwise, const std::string& branches_key,
                                    float branches) {
  if (HfDropout(fields, key, otherwise) != branches)
    fields.Error(key, absl::StrCat("must be as ", branches_key, ": hidden_dropout is both here"));
}

// Reads the fields that change a model of any type. auto_map names code beside the weights, which
// is never run; it is ignored where `architecture`, transformers' own class, is the model's.
// `quantization` is the method that weights may be quantized with; empty: none.
inline void CheckCommonHfFields(const HfFields& fields, const std::string& architecture,
                                const std::string& quantization = "") {
  if (fields.Has("quantization_config")) {
    const bool is_object = fields.Get("quantization_config").is_object();
    const std::string method =
        is_object ? fields.Object("quantization_config").Text("quant_method", "") : "";
    if (quantization.empty() || method != quantization) {
      fields.Error("quantization_config",
                   quantization.empty()
                       ? "quantized weights are not read"
                       : "of quantized weights only those in " + quantization + " are read");
    }
  }
  if (!fields.Has("architectures")) return;
  if (fields.Get("architectures") != HfJson::array({architecture})) {
    fields.Error("architectures",
                 absl::StrCat("must be [\"", architecture, "\"]",
                              fields.Has("auto_map")
                                  ? "; with auto_map another class is code of the model's own"
                                  : ""));
  }
}

// Collects as reasons what of our options has no counterpart there.
using HfReasons = std::vector<std::string>;

// The double with the shortest decimal that reads back as this float: 1e-05, not 9.99999974e-06.
double ShortestDouble(float value);

}  // namespace megatron

#endif  // MEGATRON_MODELS_HUGGINGFACE_HF_CONFIG_FIELDS_H_
