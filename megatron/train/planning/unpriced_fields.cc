#include "megatron/train/planning/unpriced_fields.h"

#include "absl/strings/str_cat.h"
#include "megatron/train/config/config_defaults.h"
#include "megatron/train/config/config_paths.h"
#include "megatron/train/planning/planned_run.h"

namespace megatron {
namespace {

// A field, and the values with which predictions are made; null for a field that costs something
// wherever it is written. Some are priced on processors.
struct Unpriced {
  const char* path;
  const char* priced;
  const char* priced_too = nullptr;
  const char* and_this = nullptr;
  bool on_gpus_alone = false;
  bool in_searches_alone = false;
  bool on_unknown_disks_alone = false;  // and on processors
  // Returns whether another value is priced beside the rest of a configuration with its computed
  // fields.
  bool (*is_priced)(const config::PretrainConfig& resolved) = nullptr;
};

constexpr Unpriced kUnpriced[] = {
    {"model.hidden_dropout", "0"},
    {"model.attention_dropout", "0"},
    {"model.qk_layernorm", "false"},
    {"model.sandwich_norm", "false"},
    {"model.qk_layernorm_all_heads", "false"},
    {"model.qk_layernorm_each_head", "false"},
    {"model.residual_multiplier", "1"},
    {"model.attn_logit_softcapping", nullptr},
    {"model.final_logit_softcapping", nullptr},
    {"model.softmax_type", "vanilla"},
    {"model.v_head_dim", nullptr},
    {"model.multi_latent_attention", "false"},
    {"model.mtp_num_layers", nullptr},
    {"model.lora.dim", nullptr},
    {"model.moe_pad_expert_input_to_capacity", "false"},
    {"parallel.moe_dispatch_in_parts", "false"},
    {"parallel.sum_in_rank_order", "false"},
    {"parallel.sparse_gradients", "false"},
    {"parallel.check_collectives", "false"},
    {"parallel.check_weight_hash_across_dp_replicas_interval", "0"},
    {"parallel.ddp_bucket_size", "0"},
    {"parallel.rank_order", "\"tp-cp-ep-dp-pp\"", "\"tp-cp-ep-pp-dp\""},
    {"parallel.shard_copies", "0"},
    {"parallel.topology_file", nullptr},
    {"parallel.param_offload_path", nullptr},
    {"parallel.grad_cpu_offload", "false"},
    {"precision.fp8_recipe", "tensorwise"},
    {"precision.fp8_wgrad", "true"},
    {"precision.first_last_layers_bf16", "false"},
    {"precision.fp8_param_gather", "false"},
    {"recompute.recompute_method", "uniform"},
    {"recompute.recompute_num_layers", "1"},
    {"recompute.recompute_modules", "[core_attn]"},
    {"recompute.cpu_offloading_num_layers", "0", nullptr, nullptr, /*on_gpus_alone=*/false,
     /*in_searches_alone=*/false, /*on_unknown_disks_alone=*/false, OffloadsAllLayers},
    {"recompute.cpu_offloading_auto", "false"},
    {"recompute.offload_modules", nullptr},
    {"optimizer.optimizer", "adam", "muon", "lamb"},
    {"optimizer.exp_avg_dtype", "fp32"},
    {"optimizer.exp_avg_sq_dtype", "fp32"},
    {"optimizer.store_param_remainders", "false"},
    {"optimizer.freeze", nullptr, nullptr, nullptr, /*on_gpus_alone=*/false,
     /*in_searches_alone=*/true},
    {"optimizer.optimizer_offload_path", nullptr, nullptr, nullptr, /*on_gpus_alone=*/false,
     /*in_searches_alone=*/false, /*on_unknown_disks_alone=*/true},
    {"optimizer.delayed_update", "false"},
    // Attention then runs in kernels for any GPU, whose rate nobody has measured.
    {"optimizer.qk_clip", "false", nullptr, nullptr, /*on_gpus_alone=*/true},
    {"train.rampup_batch_size.samples", nullptr},
    {"train.step_batch_size_schedule", nullptr},
    {"train.logits_chunk_tokens", nullptr},
    {"train.rerun_mode", "disabled"},
    {"data.reset_attention_mask", "false"},
    {"data.sft", "false"},
    {"logging.log_params_norm", "false"},
    {"logging.log_num_zeros_in_grad", "false"},
    {"logging.profile", "false"},
    {"logging.timing_log_level", "0"},
    {"logging.diagnostics_interval", "0"},
    {"system.bind_cores_to_rank", "false"},
    {"system.cuda_graph_impl", "none"},
    {"system.attention_backend", "auto"},
    {"system.deterministic_mode", "false"},
    {"system.fuse_bias_gradients", "false"},
    {"system.fuse_gelu", "auto", "none"},
};

bool Costs(const FieldRef& field, const Unpriced& unpriced) {
  const char* const priced = unpriced.priced;
  if (!IsPresent(field) && (priced == nullptr || !field.field->has_default_value())) return false;
  if (priced == nullptr) return true;
  const std::string value = ValueText(field);
  return value != priced && (unpriced.priced_too == nullptr || value != unpriced.priced_too) &&
         (unpriced.and_this == nullptr || value != unpriced.and_this);
}

bool IsPriced(config::PretrainConfig config, const Unpriced& unpriced) {
  if (unpriced.is_priced == nullptr) return false;
  ResolveDefaults(&config);
  return unpriced.is_priced(config);
}

}  // namespace

std::vector<std::string> UnpricedPaths() {
  std::vector<std::string> paths;
  for (const Unpriced& unpriced : kUnpriced) paths.push_back(unpriced.path);
  return paths;
}

std::vector<std::string> UnpricedFields(const config::PretrainConfig& config, bool is_gpu,
                                        bool knows_disk, bool searches) {
  std::vector<std::string> fields;
  for (const Unpriced& unpriced : kUnpriced) {
    const FieldRef field = Resolve(config, unpriced.path);
    if ((unpriced.on_gpus_alone && !is_gpu) || (unpriced.in_searches_alone && !searches)) continue;
    if (unpriced.on_unknown_disks_alone && is_gpu && knows_disk) continue;
    if (Costs(field, unpriced) && !IsPriced(config, unpriced))
      fields.push_back(absl::StrCat(unpriced.path, "=", ValueText(field)));
  }
  return fields;
}

}  // namespace megatron
