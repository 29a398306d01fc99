// A trained model, loaded from its checkpoint alone, which holds its configuration, too.
#ifndef MEGATRON_TRAIN_TRAINER_INFERENCE_MODEL_H_
#define MEGATRON_TRAIN_TRAINER_INFERENCE_MODEL_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "megatron/base/file_system.h"
#include "megatron/base/thread_pool.h"
#include "megatron/data/tokenizer/tokenizer.h"
#include "megatron/models/model_options.h"
#include "megatron/models/text_generator.h"
#include "megatron/train/inference/inference_stage.h"
#include "megatron/train/inference/saved_model.h"

namespace megatron {

class InferenceModel {
 public:
  // `directory` holds all checkpoints of a run, and the latest is loaded, or is the directory of
  // one iteration.
  static absl::StatusOr<std::unique_ptr<InferenceModel>> Load(FileSystem& fs,
                                                              const std::string& directory,
                                                              int num_threads);

  const Tokenizer& tokenizer() const { return *saved_.tokenizer; }
  TextGenerator& generator() { return *generator_; }
  int64_t iteration() const { return saved_.iteration; }
  const ModelOptions& options() const { return saved_.options; }
  const GeneratorLimits& limits() const { return saved_.limits; }  // limits of its training

 private:
  InferenceModel(SavedModel saved, int num_threads);

  SavedModel saved_;
  ThreadPool pool_;
  MemoryLedger ledger_;
  InferenceStage stage_;
  std::unique_ptr<TextGenerator> generator_;
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_TRAINER_INFERENCE_MODEL_H_
