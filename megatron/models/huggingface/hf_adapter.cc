#include "megatron/models/huggingface/hf_adapter.h"

#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "megatron/base/status_macros.h"
#include "megatron/layers/low_rank_adapter.h"
#include "megatron/models/huggingface/hf_decoder.h"
#include "nlohmann/json.hpp"

namespace megatron {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMaxRank = 65536;
// What stands before the names of the model's tensors.
constexpr char kPrefix[] = "base_model.model.";
// Keys that may have any value: they are read, or say how the adapters were made, or where. Another
// key with a value that asks for something may change what adapters compute.
constexpr absl::string_view kKnownKeys[] = {
    "peft_type", "peft_version", "auto_mapping", "base_model_name_or_path", "revision", "task_type",
    "inference_mode", "r", "lora_alpha", "lora_dropout", "fan_in_fan_out", "target_modules",
    "exclude_modules", "layers_to_transform", "layers_pattern", "init_lora_weights",
    "megatron_core", "loftq_config", "eva_config", "corda_config", "lora_ga_config",
    // These two say more of what is refused.
    "qalora_group_size", "ensure_weight_tying"};
// Ways to begin that leave the model's weights as they are.
constexpr absl::string_view kPlainBeginnings[] = {"gaussian", "eva", "orthogonal", "mica"};

// Returns the name without its last part, ".weight"; empty for other names.
std::string LayerOf(absl::string_view name) {
  return absl::ConsumeSuffix(&name, ".weight") ? std::string(name) : std::string();
}

std::string LastPart(absl::string_view name) {
  const std::vector<absl::string_view> parts = absl::StrSplit(name, '.');
  return std::string(parts.back());
}

// The tensors of the adapter of a linear layer, whose weight is given.
HfAdapter AdapterOf(const HfTensor& weight, int64_t dim) {
  const std::string theirs = kPrefix + LayerOf(weight.name);
  const std::string ours = LayerOf(weight.parameter) + kAdapterName;
  const int64_t inputs = weight.columns;
  HfAdapter adapter;
  adapter.a.name = theirs + ".lora_A.weight";
  adapter.a.parameter = ours + "linear_in.weight";
  adapter.a.parameter_shape = {dim, inputs};
  adapter.a.shape = {dim, inputs};
  adapter.a.rows = dim;
  adapter.a.columns = inputs;
  adapter.a.row = [](int64_t r) { return r; };
  adapter.b.name = theirs + ".lora_B.weight";
  adapter.b.parameter = ours + "linear_out.weight";
  adapter.b.parameter_shape = weight.parameter_shape;
  adapter.b.parameter_shape[-1] = dim;
  adapter.b.shape = {weight.rows, dim};
  adapter.b.rows = weight.rows;
  adapter.b.columns = dim;
  adapter.b.row = weight.row;
  return adapter;
}

std::vector<std::string> TargetModules(const ModelOptions& options, absl::string_view model_type) {
  std::set<std::string> modules;
  for (const HfAdapter& adapter : HfAdapters(options, model_type))
    modules.insert(HfModuleOf(adapter));
  return std::vector<std::string>(modules.begin(), modules.end());
}

// Returns whether the value asks for nothing.
bool IsNeutral(const Json& value) {
  return value.is_null() || value == false || value == 0 || value == "none" ||
         ((value.is_array() || value.is_object() || value.is_string()) && value.empty());
}

// PEFT subtracts the first product of other beginnings from the model's weights, also while it
// loads adapters.
absl::Status CheckBeginning(const Json& config) {
  const auto found = config.find("init_lora_weights");
  if (found == config.end() || !found->is_string()) return absl::OkStatus();
  const std::string name = absl::AsciiStrToLower(found->get_ref<const std::string&>());
  if (absl::c_linear_search(kPlainBeginnings, name)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "\"init_lora_weights\" is ", found->dump(),
      ": these adapters belong to weights that PEFT changed; its save_pretrained with "
      "path_initial_model_for_weight_conversion makes them adapters of the published ones"));
}

// Returns whether a name of target_modules has the number of a layer.
bool NamesALayer(const Json& target) {
  if (!target.is_string()) return false;
  for (const absl::string_view part : absl::StrSplit(target.get_ref<const std::string&>(), '.')) {
    if (!part.empty() && absl::c_all_of(part, absl::ascii_isdigit)) return true;
  }
  return false;
}

// A text in place of a list of target_modules is a pattern.
bool ChoosesLayers(const Json& config) {
  for (const char* key : {"layers_to_transform", "layers_pattern", "exclude_modules"}) {
    const auto found = config.find(key);
    if (found != config.end() && !IsNeutral(*found)) return true;
  }
  const auto targets = config.find("target_modules");
  if (targets == config.end()) return false;
  return targets->is_string() || (targets->is_array() && absl::c_any_of(*targets, NamesALayer));
}

}  // namespace

std::vector<HfAdapter> HfAdapters(const ModelOptions& options, absl::string_view model_type) {
  std::vector<HfAdapter> adapters;
  const LoraOptions& lora = options.transformer.lora;
  if (lora.dim == 0 || options.kind != ModelKind::kGpt) return adapters;
  for (const HfTensor& tensor : HfTensors(options, model_type)) {
    const std::string layer = LayerOf(tensor.parameter);
    const bool of_experts = tensor.parts > 1 || tensor.transposed > 1;
    if (!of_experts && !layer.empty() && lora.Of(LastPart(layer)).dim > 0)
      adapters.push_back(AdapterOf(tensor, lora.dim));
  }
  return adapters;
}

std::string HfModuleOf(const HfAdapter& adapter) {
  const std::vector<std::string> parts = absl::StrSplit(adapter.a.name, '.');
  const size_t layer = parts.size() - 3;  // in front of lora_A.weight
  return absl::StrCat(parts[layer - 1], ".", parts[layer]);
}

std::string HfAdapterConfigJson(const ModelOptions& options, absl::string_view model_type) {
  const LoraOptions& lora = options.transformer.lora;
  const Json config = {{"peft_type", "LORA"},
                       {"task_type", "CAUSAL_LM"},
                       {"base_model_name_or_path", nullptr},
                       {"r", lora.dim},
                       {"lora_alpha", lora.alpha},
                       {"lora_dropout", 0.0},
                       {"target_modules", TargetModules(options, model_type)},
                       {"bias", "none"},
                       // GPT-2's weights are [in, out] there.
                       {"fan_in_fan_out", IsHfGpt2(options, model_type)},
                       {"init_lora_weights", true},
                       {"inference_mode", true}};
  return config.dump(2) + "\n";
}

absl::StatusOr<HfAdapterConfig> ParseHfAdapterConfig(absl::string_view json) {
  const Json config = Json::parse(json.begin(), json.end(), nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) return absl::InvalidArgumentError("is no JSON object");
  const auto type = config.find("peft_type");
  if (type == config.end() || *type != "LORA")
    return absl::InvalidArgumentError("\"peft_type\" is not \"LORA\"");
  for (const auto& [key, value] : config.items()) {
    if (!IsNeutral(value) && !absl::c_linear_search(kKnownKeys, key)) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", key, "\" is ", value.dump(), ", which adapters here do not have"));
    }
  }
  MEGATRON_RETURN_IF_ERROR(CheckBeginning(config));
  HfAdapterConfig read;
  const auto rank = config.find("r"), alpha = config.find("lora_alpha");
  if (rank == config.end() || !rank->is_number_integer() || *rank < 1 || *rank > kMaxRank) {
    return absl::InvalidArgumentError(absl::StrCat("\"r\" is no integer from 1 to ", kMaxRank));
  }
  if (alpha == config.end() || !alpha->is_number() || !(*alpha > 0) || !(*alpha <= 1e6))
    return absl::InvalidArgumentError("\"lora_alpha\" is no number above 0 and up to 1000000");
  read.rank = rank->get<int64_t>();
  read.alpha = alpha->get<double>();
  read.is_of_all_layers = !ChoosesLayers(config);
  return read;
}

}  // namespace megatron
