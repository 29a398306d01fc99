#include "megatron/train/preflight/open_data.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "megatron/base/status_macros.h"
#include "megatron/train/configs/config_loader.h"
#include "megatron/train/failure/exit_status.h"

namespace megatron {
namespace {

// Reads the lists of paths, and makes all paths start where the user stands.
absl::Status ResolveDataPaths(FileSystem& fs, DataOptions* options) {
  if (!options->data_args_path.empty()) {
    options->data_args_path = PathFromWhereTheUserStands(options->data_args_path);
    MEGATRON_RETURN_IF_ERROR(ReadDataArgs(fs, options));
  }
  if (!options->per_split_data_args_path.empty()) {
    options->per_split_data_args_path =
        PathFromWhereTheUserStands(options->per_split_data_args_path);
    MEGATRON_RETURN_IF_ERROR(ReadPerSplitDataArgs(fs, options));
  }
  for (std::vector<std::string>* paths : {&options->data_path, &options->train_data_path,
                                          &options->valid_data_path, &options->test_data_path}) {
    for (std::string& path : *paths) {
      double weight;  // weights stand between the paths
      if (!absl::SimpleAtod(path, &weight)) path = PathFromWhereTheUserStands(path);
    }
  }
  if (!options->cache_path.empty())
    options->cache_path = PathFromWhereTheUserStands(options->cache_path);
  return absl::OkStatus();
}

absl::StatusOr<TrainingData> Open(FileSystem& fs, DataOptions options, const Tokenizer& tokenizer) {
  MEGATRON_RETURN_IF_ERROR(ResolveDataPaths(fs, &options));
  return OpenTrainingData(options, tokenizer);
}

}  // namespace

absl::StatusOr<EvaluationTasks> OpenTasks(FileSystem& fs, EvaluationTaskOptions options,
                                          const Tokenizer& tokenizer) {
  for (auto& [name, path] : options.files) path = PathFromWhereTheUserStands(path);
  return WithExitCode(OpenEvaluationTasks(fs, options, tokenizer), kExitData);
}

void ReadListedSources(FileSystem& fs, RunOptions* options) {
  DataOptions data = options->data;
  if (data.data_args_path.empty() && data.per_split_data_args_path.empty()) return;
  if (ResolveDataPaths(fs, &data).ok()) options->SetSources(SourceNames(data));
}

std::string ProblemOfTexts(FileSystem& fs, const DataOptions& options, const Tokenizer& tokenizer) {
  if (!options.conversations.has_value() && !options.task.has_value()) return "";
  return std::string(Open(fs, options, tokenizer).status().message());
}

absl::StatusOr<TrainingData> OpenData(FileSystem& fs, DataOptions options,
                                      const Tokenizer& tokenizer) {
  absl::StatusOr<TrainingData> data = Open(fs, std::move(options), tokenizer);
  if (HasExitCode(data.status())) return data;
  return WithExitCode(std::move(data), kExitData);
}

}  // namespace megatron
