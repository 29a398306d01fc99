// What a pretrain_* program was asked to do, and the configuration that it reads for that.
#ifndef MEGATRON_TRAIN_PRETRAIN_COMMAND_H_
#define MEGATRON_TRAIN_PRETRAIN_COMMAND_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "megatron/comm/launch/launch_env.h"
#include "megatron/train/command_line/command_line.h"
#include "megatron/train/config/config.pb.h"
#include "megatron/train/config/config_parser.h"
#include "megatron/train/configs/config_loader.h"
#include "megatron/train/planning/auto_layout.h"
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

// What the command asks for, before any of it is checked.
struct AskedConfig {
  FoundConfig found;
  ParsedConfig parsed;

  // Errors are left to the loading of the whole configuration.
  bool chooses_layout() const {
    return parsed.errors.empty() && parsed.config.train().auto_layout();
  }
};

absl::StatusOr<AskedConfig> ReadAsked(const PretrainCommand& command);

// Returns the command with what it takes from a checkpoint. What can't be read is told by the
// loading of the whole configuration.
absl::StatusOr<PretrainCommand> WithCheckpointArgs(PretrainCommand command);

// Returns the configuration that was read, if the program may train it, with paths that can be
// opened.
absl::StatusOr<LoadedConfig> ForThisProgram(const PretrainCommand& command,
                                            absl::StatusOr<LoadedConfig> read);

// Chooses the layout that train.auto_layout asks for.
absl::StatusOr<SavedLayout> ChooseLayoutOf(const PretrainCommand& command, const AskedConfig& asked,
                                           const LaunchEnvironment& launch);

// Loads the configuration with the layout, whose fields have the choice as their place.
absl::StatusOr<LoadedConfig> LoadWithLayout(const AskedConfig& asked,
                                            const std::vector<std::string>& overrides,
                                            const SavedLayout& layout, ConfigPurpose purpose);

// Returns whether the configuration asks for several ranks, whatever else may be wrong with it.
bool HasSeveralRanks(const FoundConfig& found, const std::vector<std::string>& overrides);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_PRETRAIN_COMMAND_H_
