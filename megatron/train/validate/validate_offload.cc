#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "megatron/pipeline/pipeline_layout.h"
#include "megatron/train/config/config.pb.h"
#include "megatron/train/trainer/pipeline_section.h"
#include "megatron/train/validate/rules.h"

namespace megatron {
namespace {

constexpr absl::string_view kLayers = "recompute.cpu_offloading_num_layers";
constexpr absl::string_view kAuto = "recompute.cpu_offloading_auto";
constexpr absl::string_view kModules = "recompute.offload_modules";
constexpr absl::string_view kAttentionOnHost = "recompute.attention_chunks_on_host";

// Returns the largest number of layers of a part of the model; 0 where fields that say it are wrong
// themselves.
int64_t LayersOfLargestPart(const ConfigChecker& check) {
  const config::ParallelConfig& parallel = check.resolved().parallel();
  if (!check.Usable({"model.num_layers", "parallel.pipeline_model_parallel_size"})) return 0;
  if (parallel.has_pipeline_model_parallel_split_rank()) return 0;
  if (parallel.has_pipeline_model_parallel_layout() &&
      !ParsePipelineLayout(parallel.pipeline_model_parallel_layout()).ok())
    return 0;
  const StagePlacement placement = ToPlacement(check.resolved());
  if (!placement.layers.empty())
    return *std::max_element(placement.layers.begin(), placement.layers.end());
  return check.resolved().model().num_layers() / (placement.stages * placement.chunks);
}

void CheckAttentionOffload(ConfigChecker& check) {
  const config::PretrainConfig& config = check.resolved();
  if (!config.recompute().attention_chunks_on_host() || !check.Usable({kAttentionOnHost})) return;
  const auto refuse = [&](bool broken, absl::string_view path, absl::string_view because) {
    if (!broken || !check.Usable({path})) return;
    check.Error(kAttentionOnHost,
                absl::StrCat("cannot be used with ", check.Named(path), ": ", because));
  };
  const std::string& schedule = config.parallel().pipeline_schedule();
  refuse(schedule == "zb_h1" || schedule == "zb_v", "parallel.pipeline_schedule",
         "what its later parts need stays on the GPU");
  refuse(config.recompute().cpu_offloading_auto(), kAuto,
         "it reckons with a link that carries nothing else");
  const bool on_cpu =
      config.system().has_device() && config.system().device() == config::Device::cpu;
  refuse(!on_cpu && config.system().cuda_graph_impl() != config::CudaGraphImpl::none,
         "system.cuda_graph_impl", "what another stream does meanwhile is not captured");
}

// Refuses a part that the model has not, or that is computed again.
void CheckOffloadModule(ConfigChecker& check, config::OffloadModule::Type module) {
  using Module = config::OffloadModule;
  const config::PretrainConfig& config = check.resolved();
  const auto refuse = [&](bool broken, absl::string_view path, absl::string_view because) {
    if (!broken || !check.Usable({path})) return;
    check.Error(kModules, absl::StrCat(Module::Type_Name(module), " cannot be used with ",
                                       check.Named(path), ": ", because));
  };
  const bool is_of_experts = module == Module::expert_fc1 || module == Module::moe_act;
  if (is_of_experts && config.model().num_experts() == 0) {
    check.Error(kModules, absl::StrCat(Module::Type_Name(module),
                                       " is a part of experts, which the model has with "
                                       "model.num_experts alone"));
  }
  refuse((module == Module::attn_norm || module == Module::mlp_norm) &&
             config.model().reordered_norm(),
         "model.reordered_norm", "no norm stands in front");
  refuse(module == Module::mlp_norm && config.model().parallel_residual(),
         "model.parallel_residual", "its norm reads the layer's input, which is attn_norm's");
  const config::RecomputeConfig& recompute = config.recompute();
  refuse((module == Module::core_attn || module == Module::attn_proj) &&
             recompute.attention_chunks_on_host(),
         kAttentionOnHost, "what attention keeps is in host memory already");
  if (recompute.recompute_granularity() != config::RecomputeGranularity::selective) return;
  const auto again = [&](config::RecomputeModule::Type part) {
    return absl::c_linear_search(recompute.recompute_modules(), part);
  };
  const bool has_norms = !again(config::RecomputeModule::layernorm);
  const bool has_mlp = !again(config::RecomputeModule::mlp) && !recompute.has_mlp_chunk_tokens();
  bool is_again = false;
  switch (module) {
    case Module::attn_proj:
      is_again = again(config::RecomputeModule::core_attn);
      break;
    case Module::qkv_linear:
      is_again = !has_norms && !config.model().multi_latent_attention();
      break;
    case Module::core_attn:
      is_again = again(config::RecomputeModule::mla_up_proj);
      break;
    case Module::mlp:
      is_again = !has_norms && !has_mlp && config.model().num_experts() == 0;
      break;
    case Module::expert_fc1:
      is_again = again(config::RecomputeModule::moe);
      break;
    case Module::moe_act:
      is_again = again(config::RecomputeModule::moe) || again(config::RecomputeModule::mlp);
      break;
    default:
      break;
  }
  refuse(is_again, "recompute.recompute_modules", "it is computed again");
}

void CheckOffloadModules(ConfigChecker& check) {
  const auto& modules = check.resolved().recompute().offload_modules();
  if (modules.empty() || !check.Usable({kModules})) return;
  const std::set<int> distinct(modules.begin(), modules.end());
  if (static_cast<int>(distinct.size()) != modules.size())
    check.Error(kModules, "names a module twice");
  if (check.IsWritten("model.hybrid_layer_pattern")) {
    check.Error(kModules,
                absl::StrCat("cannot be used with ", check.Named("model.hybrid_layer_pattern"),
                             ": layers of one branch have other parts"));
    return;
  }
  for (const int module : distinct)
    CheckOffloadModule(check, static_cast<config::OffloadModule::Type>(module));
}

}  // namespace

void CheckActivationOffload(ConfigChecker& check) {
  CheckAttentionOffload(check);
  CheckOffloadModules(check);
  const config::PretrainConfig& config = check.resolved();
  const int64_t layers = config.recompute().cpu_offloading_num_layers();
  const bool is_auto = config.recompute().cpu_offloading_auto();
  const absl::string_view field = is_auto ? kAuto : kLayers;
  if ((layers == 0 && !is_auto) || !check.Usable({field})) return;
  const auto refuse = [&](bool broken, absl::string_view path, absl::string_view because) {
    if (broken && check.Usable({path}))
      check.Error(field, absl::StrCat("cannot be used with ", check.Named(path), ": ", because));
  };
  refuse(is_auto && layers > 0, kLayers, "it chooses the number");
  const bool is_t5 = config.model().model_type() == config::ModelType::t5;
  refuse(is_t5, "model.model_type", "the layers of an encoder and its decoder stay on the GPU");
  const std::string& schedule = config.parallel().pipeline_schedule();
  refuse(schedule == "zb_h1" || schedule == "zb_v", "parallel.pipeline_schedule",
         "it computes gradients of weights after a layer's backward, from what the layer keeps");
  const bool on_cpu =
      config.system().has_device() && config.system().device() == config::Device::cpu;
  refuse(!on_cpu && config.system().cuda_graph_impl() != config::CudaGraphImpl::none,
         "system.cuda_graph_impl", "what another stream does meanwhile is not captured");
  if (is_auto) return;
  const int64_t most = is_t5 ? 0 : LayersOfLargestPart(check);
  if (most > 0 && layers > most) {
    check.Error(kLayers, absl::StrCat("must be at most ", most,
                                      ", the most layers that a part of the model has: each part "
                                      "offloads as many of its own"));
  }
}

void CheckGradientOffload(ConfigChecker& check) {
  constexpr absl::string_view kGradients = "parallel.grad_cpu_offload";
  constexpr absl::string_view kStrategy = "parallel.data_parallel_sharding_strategy";
  const config::PretrainConfig& config = check.resolved();
  const config::ParallelConfig& parallel = config.parallel();
  if (!parallel.grad_cpu_offload() || !check.Usable({kGradients})) return;
  const auto refuse = [&](bool broken, absl::string_view path, absl::string_view because) {
    if (broken && check.Usable({path})) {
      check.Error(kGradients,
                  absl::StrCat("cannot be used with ", check.Named(path), ": ", because));
    }
  };
  refuse(config.optimizer().optimizer_offload_fraction() != 1,
         "optimizer.optimizer_offload_fraction", "the processor updates what has its gradients");
  const bool shares_out = parallel.data_parallel_size() > 1 || parallel.context_parallel_size() > 1;
  if (shares_out) {
    refuse(!parallel.use_distributed_optimizer(), "parallel.use_distributed_optimizer",
           "ranks with the same weights share gradients out, by optim_grads");
  }
  refuse(parallel.use_distributed_optimizer() &&
             parallel.data_parallel_sharding_strategy() == config::DataParallelSharding::optim,
         kStrategy, "all gradients are on the GPU then");
  refuse(parallel.outer_dp_sharding_strategy() == config::OuterSharding::optim,
         "parallel.outer_dp_sharding_strategy", "instances share out what lies in host memory");
  const bool on_cpu =
      config.system().has_device() && config.system().device() == config::Device::cpu;
  refuse(!on_cpu && config.system().cuda_graph_impl() != config::CudaGraphImpl::none,
         "system.cuda_graph_impl", "what another stream does meanwhile is not captured");
}

void CheckDelayedUpdate(ConfigChecker& check) {
  constexpr absl::string_view kDelayed = "optimizer.delayed_update";
  const config::PretrainConfig& config = check.resolved();
  if (!config.optimizer().delayed_update() || !check.Usable({kDelayed})) return;
  const auto refuse = [&](bool broken, absl::string_view path, absl::string_view because) {
    if (broken && check.Usable({path})) {
      check.Error(kDelayed, absl::StrCat("cannot be used with ", check.Named(path), ": ", because));
    }
  };
  refuse(config.optimizer().optimizer_offload_fraction() != 1,
         "optimizer.optimizer_offload_fraction", "what the GPU updates would not be late");
  refuse(config.optimizer().has_optimizer_offload_path(), "optimizer.optimizer_offload_path",
         "gradients of the last step are kept in host memory, beside masters and states");
  refuse(config.parallel().grad_cpu_offload(), "parallel.grad_cpu_offload",
         "the next step's gradients come while those of the last one are used");
  refuse(config.parallel().param_cpu_offload(), "parallel.param_cpu_offload",
         "the passes read the weights that the update changes");
  refuse(config.precision().fp8_param_gather(), "precision.fp8_param_gather",
         "codes of weights have the scales of their own step");
  refuse(config.logging().diagnostics_interval() > 0, "logging.diagnostics_interval",
         "the update that it measures is not that of the step");
  const bool on_cpu =
      config.system().has_device() && config.system().device() == config::Device::cpu;
  refuse(!on_cpu && config.system().cuda_graph_impl() != config::CudaGraphImpl::none,
         "system.cuda_graph_impl", "gradients are zeroed in the middle of a pass");
}

void CheckParameterOffload(ConfigChecker& check) {
  constexpr absl::string_view kWeights = "parallel.param_cpu_offload";
  constexpr absl::string_view kFraction = "optimizer.optimizer_offload_fraction";
  constexpr absl::string_view kStrategy = "parallel.data_parallel_sharding_strategy";
  const config::PretrainConfig& config = check.resolved();
  const config::ParallelConfig& parallel = config.parallel();
  if (!parallel.param_cpu_offload() || !check.Usable({kWeights})) return;
  const auto refuse = [&](bool broken, absl::string_view path, absl::string_view because) {
    if (broken && check.Usable({path})) {
      check.Error(kWeights, absl::StrCat("cannot be used with ", check.Named(path), ": ", because));
    }
  };
  refuse(config.optimizer().optimizer_offload_fraction() != 1, kFraction,
         "weights in host memory are updated there");
  const bool shares_out = parallel.data_parallel_size() > 1 || parallel.context_parallel_size() > 1;
  if (shares_out) {
    refuse(!parallel.use_distributed_optimizer(), "parallel.use_distributed_optimizer",
           "ranks with the same weights share them out, by optim_grads_params");
  }
  refuse(
      parallel.use_distributed_optimizer() && parallel.data_parallel_sharding_strategy() !=
                                                  config::DataParallelSharding::optim_grads_params,
      kStrategy, "all weights are on the GPU then");
  refuse(parallel.outer_dp_sharding_strategy() == config::OuterSharding::optim,
         "parallel.outer_dp_sharding_strategy", "instances gather weights on the GPU");
  refuse(parallel.ddp_bucket_size() > 0, "parallel.ddp_bucket_size",
         "a layer is on the GPU only while it is used");
  refuse(config.precision().fp8_param_gather(), "precision.fp8_param_gather",
         "largest weights are found on the GPU");
  const bool on_cpu =
      config.system().has_device() && config.system().device() == config::Device::cpu;
  refuse(!on_cpu && config.system().cuda_graph_impl() != config::CudaGraphImpl::none,
         "system.cuda_graph_impl", "what another stream does meanwhile is not captured");
}

}  // namespace megatron
