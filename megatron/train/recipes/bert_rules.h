// The rules by which a configuration is read for a BERT.
#ifndef MEGATRON_TRAIN_RECIPES_BERT_RULES_H_
#define MEGATRON_TRAIN_RECIPES_BERT_RULES_H_

#include "megatron/train/recipes/model_rules.h"

namespace megatron {

const ModelRules& BertRules();

}  // namespace megatron

#endif  // MEGATRON_TRAIN_RECIPES_BERT_RULES_H_
