// Finds the recipe of a kind of model.
#ifndef MEGATRON_TRAIN_RECIPES_RECIPES_H_
#define MEGATRON_TRAIN_RECIPES_RECIPES_H_

#include "megatron/models/model_kind.h"
#include "megatron/train/recipes/recipe.h"

namespace megatron {

const Recipe& RecipeOf(ModelKind kind);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_RECIPES_RECIPES_H_
