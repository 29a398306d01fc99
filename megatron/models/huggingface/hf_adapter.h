// Low-rank adapters in the form of PEFT: a directory of adapter_config.json and
// adapter_model.safetensors beside a model of Hugging Face.
//
// There each linear layer has an A and a B of its own. Ours of linear_qkv, or of linear_fc1 with a
// gate, stand for three or two of theirs with the same A, and rows of one B.
#ifndef MEGATRON_MODELS_HUGGINGFACE_HF_ADAPTER_H_
#define MEGATRON_MODELS_HUGGINGFACE_HF_ADAPTER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "megatron/models/huggingface/hf_weights.h"
#include "megatron/models/model_options.h"

namespace megatron {

inline constexpr char kHfAdapterConfigFileName[] = "adapter_config.json";
inline constexpr char kHfAdapterWeightsFileName[] = "adapter_model.safetensors";

// A linear layer there that has an adapter: its A and its B, which are made of ours.
struct HfAdapter {
  HfTensor a, b;
};

// All adapters of the model (options.transformer.lora) but those of BERT and T5, which have none,
// in the order of HfTensors. Families of the same model differ in the names of layers and in the
// order of their rows, so adapters belong to `model_type`, as in HfTensors.
std::vector<HfAdapter> HfAdapters(const ModelOptions& options, absl::string_view model_type = "");

// The last two parts of the name of the layer there: "self_attn.q_proj".
std::string HfModuleOf(const HfAdapter& adapter);

// The contents of adapter_config.json for these adapters.
std::string HfAdapterConfigJson(const ModelOptions& options, absl::string_view model_type = "");

struct HfAdapterConfig {
  int64_t rank = 0;
  double alpha = 0;
  // Whether nothing in it chooses among layers: a module that one layer has an adapter of is then
  // one of all layers.
  bool is_of_all_layers = true;
};

// Reads adapter_config.json. kInvalidArgument, with the key, for adapters that are computed in
// another way than ours, or belong to other weights than the model's, and for keys that are not
// known but for values that ask for nothing (null, false, 0, "none", or empty).
absl::StatusOr<HfAdapterConfig> ParseHfAdapterConfig(absl::string_view json);

}  // namespace megatron

#endif  // MEGATRON_MODELS_HUGGINGFACE_HF_ADAPTER_H_
