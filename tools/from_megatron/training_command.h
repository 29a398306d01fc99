// Finds the command of a script that starts a training, and how many processes it starts.
#ifndef MEGATRON_TOOLS_FROM_MEGATRON_TRAINING_COMMAND_H_
#define MEGATRON_TOOLS_FROM_MEGATRON_TRAINING_COMMAND_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/from_megatron/shell_reader.h"

namespace megatron {

struct TrainingCommand {
  int line = 0;
  std::string program;           // "pretrain_gpt.py"; empty for flags alone
  std::vector<ShellWord> flags;  // the words behind the program
  int64_t world_size = 0;        // number of processes; 0 if the command does not say it
  std::string launched;          // "2 nodes of 8 processes"; with world_size
};

// The command is the one that runs a file pretrain_*.py, or any other .py file with --num-layers,
// --hidden-size or --micro-batch-size; or one that is made of flags alone. Returns kInvalidArgument
// if there is none, or more than one.
absl::StatusOr<TrainingCommand> FindTrainingCommand(const ShellScript& script);

}  // namespace megatron

#endif  // MEGATRON_TOOLS_FROM_MEGATRON_TRAINING_COMMAND_H_
