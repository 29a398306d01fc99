// A trained model, loaded from its checkpoint alone, which holds its configuration, too.
#ifndef MEGATRON_TRAIN_TRAINER_INFERENCE_MODEL_H_
#define MEGATRON_TRAIN_TRAINER_INFERENCE_MODEL_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "megatron/base/file_system.h"
#include "megatron/base/thread_pool.h"
#include "megatron/checkpoint/checkpoint_reader.h"
#include "megatron/data/tokenizer/tokenizer.h"
#include "megatron/models/model_options.h"
#include "megatron/models/stage_memory.h"
#include "megatron/models/text_generator.h"

namespace megatron {

class ModelStage;

class InferenceModel {
 public:
  ~InferenceModel();

  // `directory` holds all checkpoints of a run, and the latest is loaded, or is the directory of
  // one iteration.
  static absl::StatusOr<std::unique_ptr<InferenceModel>> Load(FileSystem& fs,
                                                              const std::string& directory,
                                                              int num_threads);

  const Tokenizer& tokenizer() const { return *tokenizer_; }
  TextGenerator& generator() { return *generator_; }
  int64_t iteration() const { return iteration_; }
  const ModelOptions& options() const { return options_; }
  const GeneratorLimits& limits() const { return limits_; }  // limits of its training

 private:
  InferenceModel(std::unique_ptr<Tokenizer> tokenizer, const ModelOptions& options,
                 const GeneratorLimits& limits, int num_threads);

  absl::Status LoadWeights(const CheckpointReader& reader);

  std::unique_ptr<Tokenizer> tokenizer_;
  ModelOptions options_;
  GeneratorLimits limits_;
  int64_t iteration_ = 0;
  ThreadPool pool_;
  MemoryLedger ledger_;
  std::unique_ptr<ModelStage> stage_;
  Buffer weights_;
  std::unique_ptr<StageMemory> memory_;
  std::unique_ptr<TextGenerator> generator_;
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_TRAINER_INFERENCE_MODEL_H_
