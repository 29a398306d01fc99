// Finds the rules of a configured model.
#ifndef MEGATRON_TRAIN_RECIPES_MODEL_RULES_OF_H_
#define MEGATRON_TRAIN_RECIPES_MODEL_RULES_OF_H_

#include "megatron/train/config/config.pb.h"
#include "megatron/train/recipes/model_rules.h"

namespace megatron {

// Returns the rules of the model's model_type.
const ModelRules& ModelRulesOf(const config::ModelConfig& model);

// Returns the number of layers of all stacks.
int64_t TotalLayers(const config::ModelConfig& model);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_RECIPES_MODEL_RULES_OF_H_
