#include "megatron/train/costs/lora_modules.h"

#include "megatron/train/costs/layer_shape.h"

namespace megatron {

const std::vector<std::string>& AllLoraModules() {
  static const auto* const modules =
      new std::vector<std::string>{"linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"};
  return *modules;
}

std::vector<std::string> LoraModules(const config::LoraConfig& config) {
  if (config.target_modules().empty()) return AllLoraModules();
  return std::vector<std::string>(config.target_modules().begin(), config.target_modules().end());
}

int64_t LoraWeights(const config::ModelConfig& model) {
  if (!model.has_lora()) return 0;
  const LayerShape layer = ToLayerShape(model);
  int64_t features = 0;  // inputs and outputs
  for (const std::string& module : LoraModules(model.lora())) {
    features += layer.hidden;
    if (module == "linear_qkv")
      features += layer.query_width + layer.gate_width + KeyAndValueWidth(layer);
    if (module == "linear_proj") features += layer.value_width;
    if (module == "linear_fc1") features += layer.is_gated ? 2 * layer.ffn : layer.ffn;
    if (module == "linear_fc2") features += layer.ffn;
  }
  return features * model.lora().dim();
}

}  // namespace megatron
