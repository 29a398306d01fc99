// The recipe for training a T5.
#ifndef MEGATRON_TRAIN_RECIPES_T5_RECIPE_H_
#define MEGATRON_TRAIN_RECIPES_T5_RECIPE_H_

#include "megatron/train/recipes/recipe.h"

namespace megatron {

const Recipe& T5Recipe();

}  // namespace megatron

#endif  // MEGATRON_TRAIN_RECIPES_T5_RECIPE_H_
