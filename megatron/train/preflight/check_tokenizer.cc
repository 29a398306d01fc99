#include "megatron/train/preflight/check_tokenizer.h"

#include "megatron/base/status_macros.h"
#include "megatron/train/recipes/recipes.h"

namespace megatron {

absl::Status CheckTokenizer(const RunOptions& options, const Tokenizer& tokenizer) {
  const Recipe& recipe = RecipeOf(options.trainer.model.kind);
  if (!options.data.mock) {
    MEGATRON_RETURN_IF_ERROR(recipe.CheckTokenizer(tokenizer));
  }
  if (!options.generation.enabled) return absl::OkStatus();
  MEGATRON_RETURN_IF_ERROR(
      recipe.CheckPrompt(options.generation.prompt, tokenizer, options.trainer.generation_limits()),
      _.SetPrepend() << "generation.prompt: ");
  return absl::OkStatus();
}

}  // namespace megatron
