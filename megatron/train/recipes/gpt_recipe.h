// The recipe for training a GPT.
#ifndef MEGATRON_TRAIN_RECIPES_GPT_RECIPE_H_
#define MEGATRON_TRAIN_RECIPES_GPT_RECIPE_H_

#include "megatron/train/recipes/recipe.h"

namespace megatron {

const Recipe& GptRecipe();

}  // namespace megatron

#endif  // MEGATRON_TRAIN_RECIPES_GPT_RECIPE_H_
