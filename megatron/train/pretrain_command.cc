#include "megatron/train/pretrain_command.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "megatron/base/file_system.h"
#include "megatron/base/status_macros.h"
#include "megatron/train/failure/exit_status.h"
#include "megatron/train/preflight/checkpoint_args.h"
#include "megatron/train/preflight/plan_pretraining.h"
#include "megatron/train/preflight/resolve_paths.h"

namespace megatron {

std::vector<std::string> PretrainCommand::all_overrides() const {
  std::vector<std::string> all = overrides;
  all.insert(all.end(), checkpoint_overrides.begin(), checkpoint_overrides.end());
  return all;
}

std::vector<std::string> PretrainCommand::arguments() const {
  std::vector<std::string> arguments = {absl::StrCat("--config=", config)};
  for (const std::string& text : overrides) arguments.push_back(absl::StrCat("--set=", text));
  return arguments;
}

absl::StatusOr<AskedConfig> ReadAsked(const PretrainCommand& command) {
  AskedConfig asked;
  MEGATRON_ASSIGN_OR_RETURN(asked.found, FindConfig(command.config));
  asked.parsed = ParseConfig(asked.found.text, asked.found.source, command.all_overrides());
  return asked;
}

absl::StatusOr<PretrainCommand> WithCheckpointArgs(PretrainCommand command) {
  const absl::StatusOr<AskedConfig> asked = ReadAsked(command);
  if (!asked.ok()) return command;
  MEGATRON_ASSIGN_OR_RETURN(CheckpointArgs args,
                            ReadCheckpointArgs(PosixFileSystem(), command.config, asked->parsed));
  command.checkpoint_overrides = std::move(args.overrides);
  command.checkpoint_lines = std::move(args.lines);
  return command;
}

absl::StatusOr<LoadedConfig> ForThisProgram(const PretrainCommand& command,
                                            absl::StatusOr<LoadedConfig> read) {
  MEGATRON_RETURN_IF_ERROR(WithExitCode(read.status(), kExitConfig));
  MEGATRON_RETURN_IF_ERROR(CheckModelType(read->config, command.config, command.model_type));
  MEGATRON_RETURN_IF_ERROR(
      WithExitCode(ResolvePaths(PosixFileSystem(), command.config, &read->config), kExitConfig));
  if (command.on_config != nullptr) {
    MEGATRON_RETURN_IF_ERROR(WithExitCode(command.on_config(read->config), kExitConfig));
  }
  return read;
}

absl::StatusOr<SavedLayout> ChooseLayoutOf(const PretrainCommand& command, const AskedConfig& asked,
                                           const LaunchEnvironment& launch) {
  LayoutRequest request;
  request.parsed = asked.parsed;
  MEGATRON_RETURN_IF_ERROR(WithExitCode(
      ResolvePaths(PosixFileSystem(), command.config, &request.parsed.config), kExitConfig));
  if (launch.world_size > 1) {
    request.launched = launch.world_size;
    request.launched_here = launch.local_world_size;
  }
  return WithExitCode(ChooseLayout(PosixFileSystem(), request), kExitConfig);
}

absl::StatusOr<LoadedConfig> LoadWithLayout(const AskedConfig& asked,
                                            const std::vector<std::string>& overrides,
                                            const SavedLayout& layout, ConfigPurpose purpose) {
  MEGATRON_ASSIGN_OR_RETURN(LoadedConfig loaded,
                            LoadConfigFromString(asked.found.text, asked.found.source,
                                                 WithLayout(overrides, layout), purpose));
  for (const std::string& text : layout.set()) {
    const std::string path = text.substr(0, text.find('='));
    if (loaded.locations.IsSet(path)) loaded.locations.Set(path, "train.auto_layout");
  }
  return loaded;
}

bool HasSeveralRanks(const FoundConfig& found, const std::vector<std::string>& overrides) {
  const ParsedConfig parsed = ParseConfig(found.text, found.source, overrides);
  const config::ParallelConfig& parallel = parsed.config.parallel();
  return parallel.tensor_model_parallel_size() > 1 || parallel.context_parallel_size() > 1 ||
         parallel.pipeline_model_parallel_size() > 1 || parallel.data_parallel_size() > 1;
}

}  // namespace megatron
