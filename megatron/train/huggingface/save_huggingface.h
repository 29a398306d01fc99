// What a run does at its end for checkpoint.save_huggingface.
#ifndef MEGATRON_TRAIN_HUGGINGFACE_SAVE_HUGGINGFACE_H_
#define MEGATRON_TRAIN_HUGGINGFACE_SAVE_HUGGINGFACE_H_

#include <string>

#include "absl/status/statusor.h"
#include "megatron/base/file_system.h"
#include "megatron/train/trainer/run_options.h"

namespace megatron {

// Writes the model of the last checkpoint if that is the one of options.loop.train_iters. Nothing
// happens without checkpoint.save_huggingface. What is in the place of the model stays. Returns a
// line for the log, or nothing. Errors carry an exit code.
absl::StatusOr<std::string> SaveHuggingface(FileSystem& fs, const RunOptions& options);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_HUGGINGFACE_SAVE_HUGGINGFACE_H_
