// The rules by which a configuration is read for a GPT.
#ifndef MEGATRON_TRAIN_RECIPES_GPT_RULES_H_
#define MEGATRON_TRAIN_RECIPES_GPT_RULES_H_

#include "megatron/train/recipes/model_rules.h"

namespace megatron {

const ModelRules& GptRules();

}  // namespace megatron

#endif  // MEGATRON_TRAIN_RECIPES_GPT_RULES_H_
