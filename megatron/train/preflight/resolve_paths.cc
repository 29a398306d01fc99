#include "megatron/train/preflight/resolve_paths.h"

#include <filesystem>
#include <vector>

#include "megatron/checkpoint/names.h"
#include "megatron/train/configs/config_loader.h"
#include "megatron/train/text/checkpoint_tokenizer.h"

namespace megatron {
namespace {

void StartWhereTheUserStands(config::PretrainConfig* config) {
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
  auto resolve_fully = [](std::string* path) {
    if (!path->empty())
      *path = std::filesystem::absolute(PathFromWhereTheUserStands(*path)).lexically_normal();
  };
  config::DataConfig* data = config->mutable_data();
  if (data->has_vocab_file()) resolve_fully(data->mutable_vocab_file());
  if (data->has_merge_file()) resolve_fully(data->mutable_merge_file());
  if (data->has_tokenizer_model()) resolve_fully(data->mutable_tokenizer_model());
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

void ResolvePaths(FileSystem& fs, const std::string& config_file, config::PretrainConfig* config) {
  StartWhereTheUserStands(config);
  const std::string file =
      std::filesystem::absolute(PathFromWhereTheUserStands(config_file)).lexically_normal();
  const bool came_with_the_program = !fs.Stat(file).ok();
  if (!came_with_the_program) FindWhatMoved(fs, ParentPath(file), config);
}

}  // namespace megatron
