#ifndef MEGATRON_TRAIN_PREFLIGHT_OPEN_DATA_H_
#define MEGATRON_TRAIN_PREFLIGHT_OPEN_DATA_H_

#include <string>

#include "absl/status/statusor.h"
#include "megatron/base/file_system.h"
#include "megatron/data/tokenizer/tokenizer.h"
#include "megatron/train/batches/evaluation_tasks.h"
#include "megatron/train/batches/training_data.h"
#include "megatron/train/trainer/run_options.h"

namespace megatron {

// Opens a run's data. Paths start where the user stands. Errors carry kExitData, or kExitConfig
// where the configuration contradicts itself. The tokenizer must outlive the data.
absl::StatusOr<TrainingData> OpenData(FileSystem& fs, DataOptions options,
                                      const Tokenizer& tokenizer);

// Sets the names of the run's sources where a file lists its data. A list that can't be read gives
// none: OpenData tells what is wrong with it.
void ReadListedSources(FileSystem& fs, RunOptions* options);

// Returns what is wrong with data that are read whole, conversations or a task's examples; empty:
// nothing, or the data are of another kind.
std::string ProblemOfTexts(FileSystem& fs, const DataOptions& options, const Tokenizer& tokenizer);

// The same as OpenData of the tasks on which the model is evaluated.
absl::StatusOr<EvaluationTasks> OpenTasks(FileSystem& fs, EvaluationTaskOptions options,
                                          const Tokenizer& tokenizer);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_PREFLIGHT_OPEN_DATA_H_
