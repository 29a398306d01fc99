// A checkpoint as a model of Hugging Face's: config.json, model.safetensors and the tokenizer's
// files.
#ifndef MEGATRON_TRAIN_HUGGINGFACE_EXPORT_CHECKPOINT_H_
#define MEGATRON_TRAIN_HUGGINGFACE_EXPORT_CHECKPOINT_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "megatron/base/file_system.h"
#include "megatron/models/model_options.h"

namespace megatron {

struct HfExportOptions {
  std::string output;      // the directory to write, which must not be there
  std::string model_type;  // their name of the family; empty: the first that has the model
  // The most bytes of tensors in one file.
  int64_t max_file_bytes = 5'000'000'000;
  // Number of rows of the vocabulary; 0: the tokenizer's number of tokens.
  int64_t vocab_size = 0;
  // Only the low-rank adapters are written, as PEFT loads them; else they are added to the weights.
  bool adapter = false;
  // A BERT whose layers have GELU by tanh, and its head the exact one, becomes one whose head has
  // GELU by tanh, too.
  bool openai_gelu = false;
  // Asked before each tensor; an error ends the export. May be empty.
  std::function<absl::Status()> keep_going;
};

// Writes the checkpoint in `directory`, that of one iteration. `output` appears when all is in it.
// It is made as `output`.tmp, where what a killed export has left is removed; so an output may have
// only one writer at a time.
// Tensors are written one by one, so that the memory is that of one expert, or of one parameter
// that is no expert's, in this layout and in theirs. Returns what there is to know, a line, or
// nothing.
//
// kInvalidArgument if no model of theirs is the same, or the output is there.
absl::StatusOr<std::string> ExportCheckpoint(FileSystem& fs, const std::string& directory,
                                             const HfExportOptions& options);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_HUGGINGFACE_EXPORT_CHECKPOINT_H_
