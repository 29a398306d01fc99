// The recipe for training a BERT.
#ifndef MEGATRON_TRAIN_RECIPES_BERT_RECIPE_H_
#define MEGATRON_TRAIN_RECIPES_BERT_RECIPE_H_

#include "megatron/train/recipes/recipe.h"

namespace megatron {

const Recipe& BertRecipe();

}  // namespace megatron

#endif  // MEGATRON_TRAIN_RECIPES_BERT_RECIPE_H_
