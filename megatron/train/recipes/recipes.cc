#include "megatron/train/recipes/recipes.h"

#include "glog/logging.h"
#include "megatron/train/recipes/bert_recipe.h"
#include "megatron/train/recipes/gpt_recipe.h"
#include "megatron/train/recipes/t5_recipe.h"

namespace megatron {

ModelKind ToModelKind(config::ModelType::Type type) {
  switch (type) {
    case config::ModelType::gpt:
      return ModelKind::kGpt;
    case config::ModelType::bert:
      return ModelKind::kBert;
    case config::ModelType::t5:
      return ModelKind::kT5;
  }
  LOG(FATAL) << "unknown model_type " << static_cast<int>(type);
}

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
