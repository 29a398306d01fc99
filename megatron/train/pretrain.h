// Pretraining from a configuration to an exit code: what the pretrain_* binaries do.
#ifndef MEGATRON_TRAIN_PRETRAIN_H_
#define MEGATRON_TRAIN_PRETRAIN_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "megatron/train/command_line/command_line.h"
#include "megatron/train/config/config.pb.h"
#include "megatron/train/rank/pretrain_run.h"

namespace megatron {

// Called with a configuration that is valid, before anything is done with it. A program takes the
// values of its own sections there; an error ends the run as one of the configuration.
using ConfigListener = std::function<absl::Status(const config::PretrainConfig& config)>;

struct PretrainCommand {
  std::string program;                 // as the user has called it: argv[0]
  std::string model_type = "gpt";      // the model that the program trains, as in model.model_type
  std::string config;                  // a file, or the name of a shipped configuration
  std::vector<std::string> overrides;  // path.to.field=value
  DryRun dry_run = DryRun::kOff;
  ConfigListener on_config;  // null: nobody listens
  PieceListener on_piece;    // null: nobody listens
  // Set by Pretrain() from a checkpoint (checkpoint_args.h), along with what to tell of it.
  std::vector<std::string> checkpoint_overrides = {}, checkpoint_lines = {};

  std::vector<std::string> all_overrides() const;
  // The command-line arguments that are equivalent to this command.
  std::vector<std::string> arguments() const;
};

// If a launcher has started this process, it is one rank of the run; else it runs or starts all
// ranks.
// Prints to stdout what it does and to stderr what goes wrong; returns one of exit_code.h.
int Pretrain(const PretrainCommand& command);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_PRETRAIN_H_
