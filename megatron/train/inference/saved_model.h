// What a checkpoint tells of its model, besides the weights.
#ifndef MEGATRON_TRAIN_INFERENCE_SAVED_MODEL_H_
#define MEGATRON_TRAIN_INFERENCE_SAVED_MODEL_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "megatron/base/file_system.h"
#include "megatron/data/tokenizer/tokenizer.h"
#include "megatron/models/model_options.h"
#include "megatron/models/text_generator.h"

namespace megatron {

struct SavedModel {
  std::string directory;  // that of the iteration, for CheckpointReader::Open
  int64_t iteration = 0;
  std::unique_ptr<Tokenizer> tokenizer;
  ModelOptions options;
  GeneratorLimits limits;  // those of its training
};

// `directory` holds all checkpoints of a run, and the latest is taken, or is the directory of one
// iteration.
absl::StatusOr<SavedModel> OpenSavedModel(FileSystem& fs, const std::string& directory);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_INFERENCE_SAVED_MODEL_H_
