#include "megatron/train/trainer/run_identity.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "google/protobuf/text_format.h"
#include "megatron/train/config/config_text.h"

namespace megatron {
namespace {

// The fields of an optimizer that make a run another one: the parameters that are frozen, and what
// ranks do in which step where they send signs; a later run with other steps would not know what
// they did. Fields that may change are left out, also where they have their defaults.
std::string OptimizerIdentity(const config::OptimizerConfig& optimizer) {
  config::PretrainConfig identity;
  config::OptimizerConfig* const own = identity.mutable_optimizer();
  *own->mutable_freeze() = optimizer.freeze();
  if (optimizer.optimizer() == config::Optimizer::onebit_adam ||
      optimizer.optimizer() == config::Optimizer::onebit_lamb) {
    own->set_freeze_step(optimizer.freeze_step());
  }
  if (optimizer.optimizer() == config::Optimizer::zero_one_adam) {
    own->set_var_freeze_step(optimizer.var_freeze_step());
    own->set_var_update_scaler(optimizer.var_update_scaler());
    own->set_local_step_scaler(optimizer.local_step_scaler());
    own->set_local_step_clipper(optimizer.local_step_clipper());
  }
  if (own->ByteSizeLong() == 0) return "";
  std::string text;
  google::protobuf::TextFormat::PrintToString(identity, &text);
  return text;
}

}  // namespace

std::string RunIdentity(const config::PretrainConfig& config, const std::string& data_fingerprint) {
  config::PretrainConfig identity;
  *identity.mutable_model() = config.model();
  // Where the weights are from is no matter once there is a checkpoint.
  identity.mutable_model()->clear_moe_use_upcycling();
  *identity.mutable_data() = config.data();
  // The fingerprint identifies the contents of the files; the way in which they are read changes
  // nothing.
  config::DataConfig* const data = identity.mutable_data();
  data->clear_data_path();
  data->clear_data_args_path();
  data->clear_train_data_path();
  data->clear_valid_data_path();
  data->clear_test_data_path();
  data->clear_per_split_data_args_path();
  data->clear_mmap_bin_files();
  data->clear_data_cache_path();
  data->clear_num_workers();
  data->clear_vocab_file();
  data->clear_merge_file();
  data->clear_tokenizer_model();
  identity.mutable_precision()->set_fp16(config.precision().fp16());
  identity.mutable_precision()->set_bf16(config.precision().bf16());
  if (config.precision().fp8_format() != config::Fp8Format::none) {
    config::PrecisionConfig* const precision = identity.mutable_precision();
    precision->set_fp8_format(config.precision().fp8_format());
    precision->set_fp8_recipe(config.precision().fp8_recipe());
    if (config.precision().fp8_recipe() == config::Fp8Recipe::delayed) {
      precision->set_fp8_margin(config.precision().fp8_margin());
      precision->set_fp8_amax_history_len(config.precision().fp8_amax_history_len());
      precision->set_fp8_amax_compute_algo(config.precision().fp8_amax_compute_algo());
    }
    if (config.precision().fp8_recipe() == config::Fp8Recipe::blockwise)
      precision->set_fp8_power_of_two_scales(config.precision().fp8_power_of_two_scales());
    precision->set_fp8_wgrad(config.precision().fp8_wgrad());
    precision->set_first_last_layers_bf16(config.precision().first_last_layers_bf16());
    precision->set_num_layers_at_start_in_bf16(config.precision().num_layers_at_start_in_bf16());
    precision->set_num_layers_at_end_in_bf16(config.precision().num_layers_at_end_in_bf16());
  }
  identity.mutable_train()->set_seed(config.train().seed());
  if (config.diloco().num_islands() > 0) {
    // These choose the samples.
    identity.mutable_diloco()->set_island(config.diloco().island());
    identity.mutable_diloco()->set_num_islands(config.diloco().num_islands());
  }
  const bool changes = config.train().phase_transition_iterations_size() > 0;
  return absl::StrCat(EffectiveConfigText(identity), OptimizerIdentity(config.optimizer()),
                      "data fingerprint: ", changes ? "that of a phase" : data_fingerprint, "\n");
}

std::string IslandAgreementText(const config::PretrainConfig& config) {
  config::PretrainConfig agreement;
  *agreement.mutable_model() = config.model();
  agreement.mutable_precision()->set_fp16(config.precision().fp16());
  agreement.mutable_precision()->set_bf16(config.precision().bf16());
  agreement.mutable_train()->set_seed(config.train().seed());
  agreement.mutable_diloco()->set_sync_every(config.diloco().sync_every());
  if (config.diloco().num_islands() > 0) {
    agreement.mutable_diloco()->set_num_islands(config.diloco().num_islands());
    agreement.mutable_train()->set_global_batch_size(config.train().global_batch_size());
  }
  return EffectiveConfigText(agreement);
}

std::string RunId(const std::string& identity) {
  // FNV-1a of 64 bits tells runs apart; nothing is protected by it.
  uint64_t hash = 0xcbf29ce484222325u;
  for (unsigned char c : identity) hash = (hash ^ c) * 0x100000001b3u;
  return absl::StrFormat("%016x", hash);
}

}  // namespace megatron
