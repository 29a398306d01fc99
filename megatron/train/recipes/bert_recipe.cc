#include "megatron/train/recipes/bert_recipe.h"

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "megatron/train/text/masked_text.h"

namespace megatron {
namespace {

constexpr int kGuesses = 3;  // answers shown for each gap at the end of a run

class Bert : public Recipe {
 public:
  void SetModelOptions(const config::ModelConfig& model, ModelOptions* options) const override {
    options->transformer.causal = false;
    options->transformer.name = "encoder";  // Megatron's name
    options->num_token_types = model.num_tokentypes();
    options->sentence_order_head = model.bert_binary_head();
    if (model.openai_gelu()) options->masked_lm_activation = ops::Activation::kGeluTanh;
    options->num_classes = model.num_classes();
    if (model.has_num_choices()) options->num_choices = model.num_choices();
  }

  void SetPacking(const config::ModelConfig& model, PackerOptions* options) const override {
    options->has_classes = true;
    if (model.has_num_choices()) options->sequences_per_sample = model.num_choices();
  }

  void SetData(const config::PretrainConfig& config, DataOptions* options) const override {
    if (options->task.has_value()) return;
    SentenceDataOptions sentences;
    sentences.model = ModelKind::kBert;
    sentences.mask_prob = config.data().mask_prob();
    sentences.short_seq_prob = config.data().short_seq_prob();
    sentences.binary_head = config.model().bert_binary_head();
    options->sentences = sentences;
  }

  absl::Status CheckPrompt(const std::string& prompt, const Tokenizer& tokenizer,
                           const GeneratorLimits& limits) const override {
    return EncodeMasks(prompt, tokenizer, limits.max_context).status();
  }

  void FinishRun(const PromptTask& task) const override {
    const absl::StatusOr<FilledText> filled =
        FillMasks(task.prompt, kGuesses, *task.tokenizer, task.limits.max_context, task.model);
    task.print("--- the model fills in ---\n");
    task.print(filled.ok() ? absl::StrCat(filled->text, "\n", FormatGuesses(*filled))
                           : absl::StrCat("generation.prompt: ", filled.status().message(), "\n"));
  }
};

}  // namespace

const Recipe& BertRecipe() {
  static const auto* const recipe = new Bert();
  return *recipe;
}

}  // namespace megatron
