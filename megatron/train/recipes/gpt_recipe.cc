#include "megatron/train/recipes/gpt_recipe.h"

#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "megatron/train/text/context_warning.h"
#include "megatron/train/text/prompt_tokens.h"
#include "megatron/train/text/text_stream.h"

namespace megatron {
namespace {

class Gpt : public Recipe {
 public:
  // The other models differ from this one.
  void SetModelOptions(const config::ModelConfig& model, ModelOptions* options) const override {
    options->output_bias = model.add_output_bias();
  }

  // The model sees the end of a text that is longer than its context.
  absl::Status CheckPrompt(const std::string& prompt, const Tokenizer& tokenizer,
                           const GeneratorLimits& limits) const override {
    return PromptTokens(prompt, tokenizer).status();
  }

  void FinishRun(const PromptTask& task) const override {
    const Tokenizer& tokenizer = *task.tokenizer;
    // CheckPrompt has refused what has none.
    std::vector<int32_t> tokens = *PromptTokens(task.prompt, tokenizer);
    task.print("--- the model continues ---\n" + task.prompt);
    TextStream text(tokenizer, tokens);
    const absl::Status generated =
        task.model->Generate(task.sampling, task.tokens, &tokens, [&](int32_t token) {
          if (token == tokenizer.eod()) return false;
          task.begin_token();
          task.print(text.Add(token));
          return task.go_on();
        });
    if (!generated.ok()) task.print(absl::StrCat("\ngeneration.prompt: ", generated.message()));
    task.print("\n" + ContextWarning(tokens.size(), task.limits.max_context));
  }
};

}  // namespace

const Recipe& GptRecipe() {
  static const auto* const recipe = new Gpt();
  return *recipe;
}

}  // namespace megatron
