// The configuration of a model that was imported: pretrain_gpt and generate_text find a model by
// its configuration alone.
#ifndef MEGATRON_TOOLS_HUGGINGFACE_HF_IMPORT_CONFIG_H_
#define MEGATRON_TOOLS_HUGGINGFACE_HF_IMPORT_CONFIG_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "megatron/data/tokenizer/tokenizer_factory.h"
#include "megatron/models/huggingface/hf_config.h"
#include "megatron/models/model_options.h"

namespace megatron {

struct ImportOptions {
  int64_t seq_length = 0;  // 0: the model's positions, at most 2048
  std::string save;        // the directory of the checkpoint
  HfTokens tokens;         // the ids that config.json names, for a model without tokenizer
  // The model's tokenizer, and the number of its tokens. Without a type, ids are tokens of
  // NullTokenizer.
  TokenizerOptions tokenizer;
  int64_t tokenizer_vocab_size = 0;
};

struct ImportedConfig {
  std::string checkpoint_text;  // the text in the checkpoint
  std::string training_text;    // the text for pretrain_gpt, to start from the checkpoint
};

// The vocabulary is padded to model.padded_vocab_size. What a training needs and no model has
// (learning rate, batch size, data) is there with a value to be replaced. Returns kInvalidArgument
// if our configuration cannot describe the model, for example if a size is out of range.
absl::StatusOr<ImportedConfig> MakeImportedConfig(const ModelOptions& model,
                                                  const ImportOptions& options);

}  // namespace megatron

#endif  // MEGATRON_TOOLS_HUGGINGFACE_HF_IMPORT_CONFIG_H_
