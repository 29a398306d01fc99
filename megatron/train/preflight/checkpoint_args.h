// Takes the model of a run from the checkpoint that it starts from, where
// checkpoint.use_checkpoint_args asks for it.
#ifndef MEGATRON_TRAIN_PREFLIGHT_CHECKPOINT_ARGS_H_
#define MEGATRON_TRAIN_PREFLIGHT_CHECKPOINT_ARGS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "megatron/base/file_system.h"
#include "megatron/train/config/config_parser.h"

namespace megatron {

struct CheckpointArgs {
  // Arguments of --set, to be applied after all others; empty: none are asked for.
  std::vector<std::string> overrides;
  std::vector<std::string> lines;  // what to tell the user of them
};

// Returns the section `model` of the checkpoint, where `asked` wants it. `config_file` is the name
// of the configuration (ResolvePaths). Errors carry the exit code to leave with.
absl::StatusOr<CheckpointArgs> ReadCheckpointArgs(FileSystem& fs, const std::string& config_file,
                                                  const ParsedConfig& asked);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_PREFLIGHT_CHECKPOINT_ARGS_H_
