// The rules by which a configuration is read for a T5.
#ifndef MEGATRON_TRAIN_RECIPES_T5_RULES_H_
#define MEGATRON_TRAIN_RECIPES_T5_RULES_H_

#include "megatron/train/recipes/model_rules.h"

namespace megatron {

const ModelRules& T5Rules();

}  // namespace megatron

#endif  // MEGATRON_TRAIN_RECIPES_T5_RULES_H_
