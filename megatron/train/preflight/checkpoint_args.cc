#include "megatron/train/preflight/checkpoint_args.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "glog/logging.h"
#include "megatron/base/status_macros.h"
#include "megatron/train/config/config_difference.h"
#include "megatron/train/config/config_text.h"
#include "megatron/train/failure/exit_status.h"
#include "megatron/train/preflight/open_checkpoint.h"
#include "megatron/train/preflight/resolve_paths.h"
#include "megatron/train/trainer/run_options.h"

namespace megatron {
namespace {

// Returns the section `model` alone, all of its values included.
std::string ModelText(const config::PretrainConfig& config) {
  config::PretrainConfig model;
  *model.mutable_model() = config.model();
  return EffectiveConfigText(model);
}

// Opens the checkpoint that the run will start from.
absl::StatusOr<StartingPoint> OpenIt(FileSystem& fs, const std::string& config_file,
                                     config::PretrainConfig config) {
  MEGATRON_RETURN_IF_ERROR(WithExitCode(ResolvePaths(fs, config_file, &config), kExitConfig));
  CheckpointOptions options = ToCheckpointOptions(config.checkpoint());
  if (options.load.empty()) options.load = options.save;
  MEGATRON_ASSIGN_OR_RETURN(StartingPoint start,
                            OpenCheckpoint(fs, options, [](const std::string&) {}));
  if (start.checkpoint != nullptr) return start;
  return WithExitCode(
      absl::NotFoundError(absl::StrCat(
          "checkpoint.use_checkpoint_args: there is no checkpoint",
          options.load.empty() ? "; set checkpoint.load" : absl::StrCat(" in ", options.load))),
      kExitConfig);
}

}  // namespace

absl::StatusOr<CheckpointArgs> ReadCheckpointArgs(FileSystem& fs, const std::string& config_file,
                                                  const ParsedConfig& asked) {
  CheckpointArgs args;
  if (!ToCheckpointOptions(asked.config.checkpoint()).use_checkpoint_args) return args;
  MEGATRON_ASSIGN_OR_RETURN(const StartingPoint start, OpenIt(fs, config_file, asked.config));
  const std::string& directory = start.checkpoint->directory();
  const absl::StatusOr<std::string> text = start.checkpoint->String("config");
  MEGATRON_RETURN_IF_ERROR(WithExitCode(text.status(), kExitCorruptCheckpoint));
  const ParsedConfig saved = ParseConfig(*text, directory, {}, UnknownSections::kIgnore);
  if (!saved.errors.empty()) {
    return WithExitCode(
        absl::DataLossError(absl::StrCat(
            directory, " has a configuration that can't be read: ", saved.errors.front().message)),
        kExitCorruptCheckpoint);
  }
  // The adapters that a run trains are its own, also where the checkpoint has none. The head of a
  // classifier is that of the run's task.
  config::PretrainConfig with_own = saved.config;
  if (asked.config.model().has_lora())
    *with_own.mutable_model()->mutable_lora() = asked.config.model().lora();
  with_own.mutable_model()->clear_num_classes();
  with_own.mutable_model()->clear_num_choices();
  const std::string model = ModelText(with_own);
  absl::string_view fields = model;
  CHECK(absl::ConsumePrefix(&fields, "model ")) << model;
  args.overrides = {absl::StrCat("model=", absl::StripSuffix(fields, "\n"))};
  args.lines = {
      absl::StrCat("model: that of ", directory, ", since checkpoint.use_checkpoint_args is true")};
  for (const ConfigDifference& difference : DifferencesOf(ModelText(asked.config), model)) {
    if (!asked.locations.IsSet(difference.field)) continue;
    args.lines.push_back(absl::StrCat("  ", difference.field, " is ", difference.other, " and not ",
                                      difference.first, " (",
                                      asked.locations.Where(difference.field), ")"));
  }
  return args;
}

}  // namespace megatron
