#include "megatron/train/recipes/recipes.h"

#include "glog/logging.h"
#include "megatron/train/recipes/bert_recipe.h"
#include "megatron/train/recipes/gpt_recipe.h"
#include "megatron/train/recipes/t5_recipe.h"

namespace megatron {

const Recipe& RecipeOf(ModelKind kind) {
  switch (kind) {
    case ModelKind::kGpt:
      return GptRecipe();
    case ModelKind::kBert:
      return BertRecipe();
    case ModelKind::kT5:
      return T5Recipe();
  }
  LOG(FATAL) << "unknown kind of model " << static_cast<int>(kind);
}

}  // namespace megatron
