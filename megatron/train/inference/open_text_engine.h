// Opens a checkpoint as a text engine.
//
//   MEGATRON_ASSIGN_OR_RETURN(std::unique_ptr<ServedModel> model, OpenTextEngine(fs, options));
//   model->engine().Submit(...);
//
// The model may have been trained in any layout. It is computed in its weights' precision: a model
// that was trained with products of 8-bit floats has none here. Its experts take all tokens that
// choose them, also where training had a capacity: a token's result would depend on its company
// otherwise.
#ifndef MEGATRON_TRAIN_INFERENCE_OPEN_TEXT_ENGINE_H_
#define MEGATRON_TRAIN_INFERENCE_OPEN_TEXT_ENGINE_H_

#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "megatron/base/file_system.h"
#include "megatron/data/tokenizer/tokenizer.h"
#include "megatron/generate/batched_text_engine.h"
#include "megatron/generate/text_engine.h"
#include "megatron/models/model_options.h"
#include "megatron/train/inference/saved_model.h"

namespace megatron {

struct TextEngineOptions {
  std::string checkpoint;  // the directory of a run, whose latest is taken, or of one iteration
  // The ranks over which the model is cut. They are threads of this process.
  int tensor_parallel = 1, pipeline_parallel = 1;
  int num_threads = 0;  // of all ranks together; 0: as many as there are cores
  int max_batch = 16;   // the most requests that are worked on at once
  int max_queue = 256;  // the most requests that wait
  // The most tokens of a prompt and its continuation; 0: as many as in training.
  int64_t max_context = 0;
  // Returns what else the process takes for requests to an engine of such limits, for which memory
  // is left; none: nothing.
  std::function<int64_t(const EngineLimits&)> bytes_of_requests;
  // The most tokens of a step, and the most of a prompt that is scored.
  int64_t max_step_tokens = 256, max_step_logits = 64;
};

class ServedModel {
 public:
  ~ServedModel();  // ends all requests

  TextEngine& engine() { return *engine_; }
  const Tokenizer& tokenizer() const { return *saved_.tokenizer; }
  const ModelOptions& options() const { return saved_.options; }
  int64_t iteration() const { return saved_.iteration; }
  const std::string& directory() const { return saved_.directory; }  // that of the iteration
  // The bytes that all ranks hold: of weights, of keys, values and states, and all together.
  int64_t weight_bytes() const;
  int64_t cache_bytes() const;
  int64_t total_bytes() const;

 private:
  friend absl::StatusOr<std::unique_ptr<ServedModel>> OpenTextEngine(
      FileSystem& fs, const TextEngineOptions& options);
  // A rank's part of the model.
  struct RankPart;

  ServedModel();
  absl::Status Start(FileSystem& fs, const TextEngineOptions& options);
  // What a rank does from its start to its end.
  absl::Status RunRank(FileSystem& fs, const TextEngineOptions& options, int rank,
                       const ProcessGroup& world);
  int64_t SumOf(const std::string& name) const;

  SavedModel saved_;
  BatchedTextEngineOptions engine_options_;
  std::vector<std::unique_ptr<RankPart>> parts_;  // by rank
  std::unique_ptr<BatchedTextEngine> engine_;     // set when the ranks are ready
  std::promise<absl::Status> started_;
  std::thread ranks_;
};

// Fails where the checkpoint cannot be read, is of another kind of model than GPT, cannot be cut as
// asked, or does not fit this machine's memory with so large a batch. The message then names what
// does not divide, or how many requests fit.
absl::StatusOr<std::unique_ptr<ServedModel>> OpenTextEngine(FileSystem& fs,
                                                            const TextEngineOptions& options);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_INFERENCE_OPEN_TEXT_ENGINE_H_
