#include "megatron/train/preflight/resolve_paths.h"

#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "megatron/base/status_macros.h"
#include "megatron/checkpoint/names.h"
#include "megatron/train/configs/config_loader.h"
#include "megatron/train/text/checkpoint_tokenizer.h"

namespace megatron {
namespace {

absl::StatusOr<std::string> FullPath(const std::string& path) {
  std::error_code error;
  const std::filesystem::path full =
      std::filesystem::absolute(PathFromWhereTheUserStands(path), error);
  if (error) {
    return absl::FailedPreconditionError(absl::StrCat(
        "'", path, "' is a relative path, and the current directory can't be found: ",
        error.message(), ". Give a path from the root, or start in another directory"));
  }
  return full.lexically_normal().string();
}

absl::Status MakeFull(std::string* path) {
  if (path->empty()) return absl::OkStatus();
  MEGATRON_ASSIGN_OR_RETURN(*path, FullPath(*path));
  return absl::OkStatus();
}

absl::Status StartWhereTheUserStands(config::PretrainConfig* config) {
  auto resolve = [](std::string* path) {
    if (!path->empty()) *path = PathFromWhereTheUserStands(*path);
  };
  config::CheckpointConfig* checkpoint = config->mutable_checkpoint();
  if (checkpoint->has_save()) resolve(checkpoint->mutable_save());
  if (checkpoint->has_load()) resolve(checkpoint->mutable_load());
  if (checkpoint->has_save_huggingface()) resolve(checkpoint->mutable_save_huggingface());
  config::ParallelConfig* parallel = config->mutable_parallel();
  if (parallel->has_topology_file()) resolve(parallel->mutable_topology_file());
  if (parallel->has_param_offload_path()) resolve(parallel->mutable_param_offload_path());
  config::DilocoConfig* diloco = config->mutable_diloco();
  if (diloco->has_secret_file()) resolve(diloco->mutable_secret_file());
  config::SystemConfig* system = config->mutable_system();
  if (system->has_hardware_file()) resolve(system->mutable_hardware_file());
  if (system->has_kernels_file()) resolve(system->mutable_kernels_file());
  config::OptimizerConfig* optimizer = config->mutable_optimizer();
  if (optimizer->has_optimizer_offload_path()) resolve(optimizer->mutable_optimizer_offload_path());
  config::LoggingConfig* logging = config->mutable_logging();
  if (logging->has_metrics_file()) resolve(logging->mutable_metrics_file());
  if (logging->has_tensorboard_dir()) resolve(logging->mutable_tensorboard_dir());
  if (logging->has_pipeline_timeline_file()) resolve(logging->mutable_pipeline_timeline_file());
  if (logging->has_prometheus_textfile()) resolve(logging->mutable_prometheus_textfile());
  if (logging->has_profile_dir()) resolve(logging->mutable_profile_dir());
  // The checkpoint keeps these, for programs that are started elsewhere.
  config::DataConfig* data = config->mutable_data();
  if (data->has_vocab_file()) {
    MEGATRON_RETURN_IF_ERROR(MakeFull(data->mutable_vocab_file()));
  }
  if (data->has_merge_file()) {
    MEGATRON_RETURN_IF_ERROR(MakeFull(data->mutable_merge_file()));
  }
  if (data->has_tokenizer_model()) {
    MEGATRON_RETURN_IF_ERROR(MakeFull(data->mutable_tokenizer_model()));
  }
  return absl::OkStatus();
}

void FindWhatMoved(FileSystem& fs, const std::string& folder, config::PretrainConfig* config) {
  config::DataConfig* data = config->mutable_data();
  const std::vector<std::string> folders = {folder, JoinPath(folder, "tokenizer")};
  if (data->has_vocab_file()) data->set_vocab_file(FindMoved(fs, data->vocab_file(), folders));
  if (data->has_merge_file()) data->set_merge_file(FindMoved(fs, data->merge_file(), folders));
  if (data->has_tokenizer_model())
    data->set_tokenizer_model(FindMoved(fs, data->tokenizer_model(), folders));
  config::CheckpointConfig* checkpoint = config->mutable_checkpoint();
  const bool is_gone = checkpoint->has_load() && checkpoint->load() != checkpoint->save() &&
                       !fs.Stat(checkpoint->load()).ok();
  if (is_gone && fs.Stat(JoinPath(folder, kLatestFileName)).ok()) checkpoint->set_load(folder);
}

}  // namespace

absl::Status ResolvePaths(FileSystem& fs, const std::string& config_file,
                          config::PretrainConfig* config) {
  if (config_file.empty())
    return absl::InvalidArgumentError("no configuration is given: --config=FILE");
  MEGATRON_RETURN_IF_ERROR(StartWhereTheUserStands(config));
  MEGATRON_ASSIGN_OR_RETURN(const std::string file, FullPath(config_file));
  const bool came_with_the_program = !fs.Stat(file).ok();
  if (!came_with_the_program) FindWhatMoved(fs, ParentPath(file), config);
  return absl::OkStatus();
}

}  // namespace megatron
