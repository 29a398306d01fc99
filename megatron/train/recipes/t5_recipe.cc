#include "megatron/train/recipes/t5_recipe.h"

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "megatron/train/text/context_warning.h"
#include "megatron/train/text/restored_text.h"

namespace megatron {
namespace {

class T5 : public Recipe {
 public:
  // The options describe the decoder.
  void SetModelOptions(const config::ModelConfig& model, ModelOptions* options) const override {
    options->transformer.num_layers = model.decoder_num_layers();
    options->num_encoder_layers = model.encoder_num_layers();
    options->output_bias = model.add_output_bias();
  }

  void SetData(const config::PretrainConfig& config, DataOptions* options) const override {
    if (options->task.has_value()) {
      options->task->decoder_seq_length = config.model().decoder_seq_length();
      return;
    }
    SentenceDataOptions sentences;
    sentences.model = ModelKind::kT5;
    sentences.mask_prob = config.data().mask_prob();
    sentences.short_seq_prob = config.data().short_seq_prob();
    sentences.decoder_seq_length = config.model().decoder_seq_length();
    options->sentences = sentences;
  }

  absl::Status CheckTokenizer(const Tokenizer& tokenizer) const override {
    if (!tokenizer.special().sentinels.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        "data.vocab_extra_ids: a T5 needs sentinels, which the tokenizer does not have; "
        "100 is usual");
  }

  absl::Status CheckPrompt(const std::string& prompt, const Tokenizer& tokenizer,
                           const GeneratorLimits& limits) const override {
    return EncodeGaps(prompt, tokenizer, limits.max_encoder_context).status();
  }

  void FinishRun(const PromptTask& task) const override {
    RestoreOptions options;
    options.sampling = task.sampling;
    options.tokens = task.tokens;
    options.limits = task.limits;
    const absl::StatusOr<RestoredText> restored =
        RestoreText(task.prompt, *task.tokenizer, options, task.model, [&] {
          task.begin_token();
          return task.go_on();
        });
    task.print("--- the model restores ---\n");
    task.print(restored.ok()
                   ? absl::StrCat(restored->text, "\n", FormatSpans(*restored))
                   : absl::StrCat("generation.prompt: ", restored.status().message(), "\n"));
    if (restored.ok() && restored->cut_off) task.print(CutOffWarning(task.limits.max_context));
  }
};

}  // namespace

const Recipe& T5Recipe() {
  static const auto* const recipe = new T5();
  return *recipe;
}

}  // namespace megatron
