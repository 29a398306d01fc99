// The linear layers of a model that have low-rank adapters.
#ifndef MEGATRON_TRAIN_COSTS_LORA_MODULES_H_
#define MEGATRON_TRAIN_COSTS_LORA_MODULES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "megatron/train/config/config.pb.h"

namespace megatron {

// Returns the names that target_modules may have.
const std::vector<std::string>& AllLoraModules();

// Returns the names of the layers with adapters.
std::vector<std::string> LoraModules(const config::LoraConfig& config);

// Returns the number of weights of the adapters of one layer of the model; 0 without adapters.
int64_t LoraWeights(const config::ModelConfig& model);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_COSTS_LORA_MODULES_H_
