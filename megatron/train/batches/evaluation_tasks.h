// The tasks on which a run evaluates its model while it trains.
#ifndef MEGATRON_TRAIN_BATCHES_EVALUATION_TASKS_H_
#define MEGATRON_TRAIN_BATCHES_EVALUATION_TASKS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "megatron/base/file_system.h"
#include "megatron/data/tokenizer/tokenizer.h"
#include "megatron/evaluate/packed_requests.h"
#include "megatron/evaluate/prepared_task.h"

namespace megatron {

struct EvaluationTaskOptions {
  std::vector<std::pair<std::string, std::string>> files;  // tasks' names, with their files
  int64_t limit = 0;  // the most examples of each, or windows of a text; 0: all
  int64_t overlapping_eval = 32;
  int64_t seq_length = 0;
  int64_t global_batch_size = 1;
};

struct EvaluationTask {
  EvaluationTask(PreparedTask prepared, const EvaluationTaskOptions& options)
      : task(std::move(prepared)),
        samples(task.requests(), options.seq_length, options.global_batch_size) {}
  EvaluationTask(const EvaluationTask&) = delete;
  EvaluationTask& operator=(const EvaluationTask&) = delete;

  const PreparedTask task;
  const PackedRequests samples;
};

using EvaluationTasks = std::vector<std::unique_ptr<EvaluationTask>>;

// Splits "hellaswag=val.jsonl" at its first "=". kInvalidArgument unless it begins with the name of
// a task, and a path follows.
absl::StatusOr<std::pair<std::string, std::string>> SplitTaskAndFile(absl::string_view text);

// Reads the tasks' files, from where the user stands. Errors name the file.
absl::StatusOr<EvaluationTasks> OpenEvaluationTasks(FileSystem& fs,
                                                    const EvaluationTaskOptions& options,
                                                    const Tokenizer& tokenizer);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_BATCHES_EVALUATION_TASKS_H_
