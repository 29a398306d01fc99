// Recipe: the options, the samples, the checks of tokenizer and prompt, and the end of a run of one
// kind of model. The models themselves are in models/. What a configuration means for a kind, its
// rules and its costs are in model_rules.h.
#ifndef MEGATRON_TRAIN_RECIPES_RECIPE_H_
#define MEGATRON_TRAIN_RECIPES_RECIPE_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "megatron/data/tokenizer/tokenizer.h"
#include "megatron/models/model_options.h"
#include "megatron/models/text_generator.h"
#include "megatron/train/batches/micro_batch_packer.h"
#include "megatron/train/batches/training_data.h"
#include "megatron/train/config/config.pb.h"

namespace megatron {

// The prompt for the trained model at the end of a run, and the functions that show its answer.
struct PromptTask {
  std::string prompt;
  int64_t tokens = 0;  // the most tokens to write
  SamplingOptions sampling;
  GeneratorLimits limits;
  const Tokenizer* tokenizer = nullptr;
  TextGenerator* model = nullptr;
  std::function<void(const std::string& text)> print;
  std::function<void()> begin_token;  // called after each token, before it is shown
  std::function<bool()> go_on;        // asked after each token; all ranks get the same answer
};

class Recipe {
 public:
  virtual ~Recipe() = default;

  // Sets the fields of *options that only this kind of model has, or that differ for it.
  virtual void SetModelOptions(const config::ModelConfig& model, ModelOptions* options) const = 0;
  // Sets what the samples of a micro-batch hold besides their tokens.
  virtual void SetPacking(const config::ModelConfig& model, PackerOptions* options) const {}
  // Sets how samples are made of the data's tokens; options->task is set if the data are a task's.
  virtual void SetData(const config::PretrainConfig& config, DataOptions* options) const {}

  // Refuses a tokenizer that lacks what samples of the data need.
  virtual absl::Status CheckTokenizer(const Tokenizer& tokenizer) const { return absl::OkStatus(); }
  // Refuses a prompt that FinishRun could not use.
  virtual absl::Status CheckPrompt(const std::string& prompt, const Tokenizer& tokenizer,
                                   const GeneratorLimits& limits) const = 0;
  // Shows the model's answer to the prompt. All ranks that hold the model call it.
  virtual void FinishRun(const PromptTask& task) const = 0;
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_RECIPES_RECIPE_H_
