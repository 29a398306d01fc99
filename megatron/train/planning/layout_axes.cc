#include "megatron/train/planning/layout_axes.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "megatron/train/planning/planned_run.h"

namespace megatron {
namespace {

void ClearLayout(config::ParallelConfig* parallel) {
  parallel->clear_tensor_model_parallel_size();
  parallel->clear_tensor_parallel_mode();
  parallel->clear_tensor_parallel_depth();
  parallel->clear_pipeline_model_parallel_size();
  parallel->clear_data_parallel_size();
  // An order that no layout has stays, as it is written.
  if (parallel->rank_order() == kDataOutermost) parallel->clear_rank_order();
  parallel->clear_sequence_parallel();
  parallel->clear_num_layers_per_virtual_pipeline_stage();
  parallel->clear_decoder_first_pipeline_num_layers();
  parallel->clear_decoder_last_pipeline_num_layers();
  parallel->clear_pipeline_schedule();
  parallel->clear_pipeline_pass_costs();
  parallel->clear_num_virtual_stages_per_pipeline_rank();
  parallel->clear_microbatch_group_size_per_virtual_pipeline_stage();
  parallel->clear_pipeline_model_parallel_layout();
  parallel->clear_pipeline_model_parallel_split_rank();
  parallel->clear_account_for_embedding_in_pipeline_split();
  parallel->clear_account_for_loss_in_pipeline_split();
  parallel->clear_use_distributed_optimizer();
  parallel->clear_data_parallel_sharding_strategy();
  parallel->clear_num_distributed_optimizer_instances();
  parallel->clear_outer_dp_sharding_strategy();
  parallel->clear_hierarchical_collectives_ranks_per_host();
  parallel->clear_zero_hpz_partition_size();
  parallel->clear_zero_quantized_weights();
  parallel->clear_zero_quantized_gradients();
  parallel->clear_overlap_grad_reduce();
  parallel->clear_overlap_param_gather();
  parallel->clear_context_parallel_size();
  parallel->clear_cp_comm_type();
  parallel->clear_hierarchical_context_parallel_sizes();
  parallel->clear_expert_model_parallel_size();
  parallel->clear_expert_tensor_parallel_size();
  parallel->clear_moe_deduplicated_dispatch();
}

config::ContextParallelComm::Type CommTypeOf(PlanContext form) {
  switch (form) {
    case PlanContext::kRing:
      return config::ContextParallelComm::p2p;
    case PlanContext::kAllToAll:
      return config::ContextParallelComm::a2a;
    case PlanContext::kGather:
      return config::ContextParallelComm::allgather;
    case PlanContext::kTeams:
      return config::ContextParallelComm::a2a_p2p;
  }
  return config::ContextParallelComm::p2p;
}

const char* NameOf(const LayoutAxes& axes) {
  switch (axes.schedule) {
    case PlanSchedule::kOneForwardOneBackward:
      return axes.chunks > 1 ? "interleaved" : "1f1b";
    case PlanSchedule::kZeroBubbleH1:
      return "zb_h1";
    case PlanSchedule::kZeroBubbleV:
      return "zb_v";
    case PlanSchedule::kGPipe:
      return "gpipe";
  }
  return "";
}

const char* ModeOf(const PlanGrid& grid) {
  return grid.is_cube ? "3d" : grid.depth > 1 ? "2.5d" : "2d";
}

void ApplyAxes(const LayoutAxes& axes, int64_t experts, config::ParallelConfig* parallel) {
  if (axes.tensor > 1) {
    parallel->set_tensor_model_parallel_size(axes.tensor);
  } else {
    parallel->clear_tp_comm_overlap();
  }
  if (axes.grid.is_grid()) {
    parallel->set_tensor_parallel_mode(ModeOf(axes.grid));
    if (!axes.grid.is_cube && axes.grid.depth > 1)
      parallel->set_tensor_parallel_depth(axes.grid.depth);
  }
  if (axes.is_sequence_parallel) parallel->set_sequence_parallel(true);
  if (axes.context > 1) {
    parallel->set_context_parallel_size(axes.context);
    parallel->set_cp_comm_type(CommTypeOf(axes.context_form));
    if (axes.context_form == PlanContext::kTeams) {
      parallel->add_hierarchical_context_parallel_sizes(axes.context_team);
      parallel->add_hierarchical_context_parallel_sizes(axes.context / axes.context_team);
    }
  }
  if (axes.pipeline > 1) parallel->set_pipeline_model_parallel_size(axes.pipeline);
  if (axes.chunks > 1 && axes.schedule != PlanSchedule::kZeroBubbleV)
    parallel->set_num_virtual_stages_per_pipeline_rank(axes.chunks);
  if (axes.pipeline > 1) parallel->set_pipeline_schedule(NameOf(axes));
  if (axes.encoder_stages > 0)
    parallel->set_pipeline_model_parallel_split_rank(axes.encoder_stages);
  if (axes.last_layers > 0) parallel->set_decoder_last_pipeline_num_layers(axes.last_layers);
  if (axes.ends_count) {
    parallel->set_account_for_embedding_in_pipeline_split(true);
    parallel->set_account_for_loss_in_pipeline_split(true);
  }
  parallel->set_data_parallel_size(axes.data);
  if (axes.data_is_outermost) parallel->set_rank_order(kDataOutermost);
  if (experts > 0) {
    parallel->set_expert_model_parallel_size(axes.expert);
    parallel->set_expert_tensor_parallel_size(axes.expert_tensor);
    if (axes.deduplicates_dispatch) parallel->set_moe_deduplicated_dispatch(true);
    if (axes.expert == 1 || axes.expert == experts || axes.deduplicates_dispatch)
      parallel->clear_moe_dispatch_in_parts();
  }
}

void ApplySharing(const LayoutAxes& axes, bool overlaps, config::ParallelConfig* parallel) {
  if (axes.data * axes.context == 1) {
    parallel->clear_grad_reduce_in_bf16();
    parallel->clear_communication_data_type();
    parallel->clear_prescale_gradients();
    parallel->clear_gradient_predivide_factor();
    parallel->clear_ddp_bucket_size();
    return;
  }
  if (overlaps) parallel->set_overlap_grad_reduce(true);
  if (axes.ranks_per_host > 0)
    parallel->set_hierarchical_collectives_ranks_per_host(axes.ranks_per_host);
  if (axes.shared_out == SharedOut::kNothing) return;
  parallel->set_use_distributed_optimizer(true);
  if (overlaps) parallel->set_overlap_param_gather(true);
  if (axes.instances > 1) {
    parallel->set_num_distributed_optimizer_instances(axes.instances);
    if (axes.instances_share_states)
      parallel->set_outer_dp_sharding_strategy(config::OuterSharding::optim);
  }
  if (axes.hosts > 1) parallel->set_zero_hpz_partition_size(axes.data * axes.context / axes.hosts);
  if (axes.quantizes_weights) parallel->set_zero_quantized_weights(true);
  if (axes.quantizes_gradients) parallel->set_zero_quantized_gradients(true);
  if (axes.shared_out == SharedOut::kOptimizer) return;
  parallel->clear_ddp_bucket_size();
  parallel->set_data_parallel_sharding_strategy(
      axes.shared_out == SharedOut::kGradients ? config::DataParallelSharding::optim_grads
                                               : config::DataParallelSharding::optim_grads_params);
}

// A configuration that recomputes in this way already keeps its choice of what. Chunks that are
// written stay.
void ApplyRecompute(PlanRecompute recompute, config::PretrainConfig* config) {
  const auto clear = [config] {
    const config::RecomputeConfig before = config->recompute();
    config->clear_recompute();
    if (before.has_mlp_chunk_tokens())
      config->mutable_recompute()->set_mlp_chunk_tokens(before.mlp_chunk_tokens());
    if (before.has_attention_chunk_tokens())
      config->mutable_recompute()->set_attention_chunk_tokens(before.attention_chunk_tokens());
    if (before.has_attention_chunks_on_host())
      config->mutable_recompute()->set_attention_chunks_on_host(before.attention_chunks_on_host());
  };
  if (recompute == PlanRecompute::kNone) return clear();
  const auto granularity = recompute == PlanRecompute::kFull
                               ? config::RecomputeGranularity::full
                               : config::RecomputeGranularity::selective;
  if (config->recompute().recompute_granularity() == granularity) return;
  clear();
  config->mutable_recompute()->set_recompute_granularity(granularity);
}

void ApplyAttentionChunks(int64_t tokens, config::PretrainConfig* config) {
  if (tokens == 0) return;
  config->mutable_recompute()->set_attention_chunk_tokens(tokens);
  config->mutable_recompute()->set_attention_chunks_on_host(true);
}

void ApplyActivationOffload(const LayoutAxes& axes, config::PretrainConfig* config) {
  if (config->has_recompute()) {
    config->mutable_recompute()->clear_cpu_offloading_num_layers();
    config->mutable_recompute()->clear_offload_modules();
  }
  if (!axes.activations_on_host) return;
  config->mutable_recompute()->set_cpu_offloading_num_layers(
      LayersOfLargestPart(axes, config->model().num_layers()));
}

void ApplyOffload(const LayoutAxes& axes, config::PretrainConfig* config) {
  const double host_fraction = axes.host_fraction;
  config->mutable_parallel()->clear_param_cpu_offload();
  config->mutable_parallel()->clear_grad_cpu_offload();
  if (axes.weights_on_host) {
    config->mutable_parallel()->set_param_cpu_offload(true);
  } else {
    config->mutable_parallel()->clear_param_offload_path();
  }
  config::OptimizerConfig* const optimizer = config->mutable_optimizer();
  optimizer->clear_optimizer_cpu_offload();
  optimizer->clear_optimizer_offload_fraction();
  if (host_fraction == 0) return optimizer->clear_optimizer_offload_path();
  if (!axes.states_in_files) optimizer->clear_optimizer_offload_path();
  optimizer->set_optimizer_cpu_offload(true);
  if (host_fraction < 1) optimizer->set_optimizer_offload_fraction(host_fraction);
}

}  // namespace

PartSizes SizesOfParts(const LayoutAxes& axes, int64_t layers) {
  const int64_t parts = axes.pipeline * axes.chunks;
  if (parts == 1) return {layers, layers, layers};
  if (axes.last_layers > 0) {
    const int64_t others = (layers - axes.last_layers) / (parts - 1);
    return {others, others, axes.last_layers};
  }
  const int64_t things = (layers + (axes.ends_count ? 2 : 0)) / parts;
  const int64_t end = things - (axes.ends_count ? 1 : 0);
  return {end, things, end};
}

int64_t LayersOfLargestPart(const LayoutAxes& axes, int64_t layers) {
  const PartSizes parts = SizesOfParts(axes, layers);
  const int64_t of_ends = std::max(parts.first, parts.last);
  return axes.pipeline * axes.chunks > 2 ? std::max(of_ends, parts.inner) : of_ends;
}

int LayoutAxes::count() const {
  return (tensor > 1) + grid.is_grid() + (context > 1) + (pipeline > 1) + (chunks > 1) +
         static_cast<int>(schedule) + (last_layers > 0) + (encoder_stages > 0) + data_is_outermost +
         (data > 1) + (expert > 1) + (expert_tensor > 1) + is_sequence_parallel +
         (host_fraction > 0) + states_in_files + weights_on_host + activations_on_host +
         (attention_chunk_on_host > 0) + static_cast<int>(context_form) +
         static_cast<int>(recompute) + static_cast<int>(shared_out) + (instances > 1) +
         instances_share_states + (ranks_per_host > 0) + deduplicates_dispatch + (hosts > 1) +
         quantizes_weights + quantizes_gradients;
}

bool LayoutOverlaps(const config::PretrainConfig& config, bool is_gpu) {
  const config::ParallelConfig& parallel = config.parallel();
  if (parallel.has_overlap_grad_reduce()) return parallel.overlap_grad_reduce();
  return is_gpu && config.system().cuda_graph_impl() == config::CudaGraphImpl::none &&
         parallel.distributed_backend() != config::DistributedBackend::host;
}

void SetPlannedDevice(bool is_gpu, config::PretrainConfig* config) {
  if (is_gpu && !config->system().has_device())
    config->mutable_system()->set_device(config::Device::cuda);
}

void ApplyLayout(const LayoutAxes& axes, bool is_gpu, config::PretrainConfig* config) {
  const bool overlaps = LayoutOverlaps(*config, is_gpu);
  config::ParallelConfig* const parallel = config->mutable_parallel();
  ClearLayout(parallel);
  ApplyAxes(axes, config->model().num_experts(), parallel);
  ApplySharing(axes, overlaps, parallel);
  ApplyRecompute(axes.recompute, config);
  ApplyAttentionChunks(axes.attention_chunk_on_host, config);
  ApplyActivationOffload(axes, config);
  // On a processor these fields do nothing, and stay.
  if (is_gpu) ApplyOffload(axes, config);
  config->mutable_train()->set_micro_batch_size(axes.micro_batch);
  if (axes.ranks() > 1) return;
  parallel->clear_distributed_timeout_minutes();
  parallel->clear_distributed_timeout_seconds_after_init();
  parallel->clear_heartbeat_timeout_seconds();
  parallel->clear_stuck_rank_timeout_seconds();
  parallel->clear_ranks_as();
  parallel->clear_restarts();
  parallel->clear_min_data_parallel_size();
}

config::PretrainConfig WithoutRanks(const config::PretrainConfig& config, const LayoutAxes& one,
                                    bool is_gpu) {
  config::PretrainConfig simple = config;
  ApplyLayout(one, is_gpu, &simple);
  config::ParallelConfig* const parallel = simple.mutable_parallel();
  parallel->Clear();
  simple.mutable_precision()->clear_fp8_param_gather();
  simple.mutable_checkpoint()->clear_peer_copies();
  simple.mutable_logging()->clear_profile_ranks();
  simple.mutable_logging()->clear_pipeline_timeline_file();
  if (config.gradient_compression().type() == config::GradientCompression::none) return simple;
  const config::ParallelConfig& held = config.parallel();
  parallel->set_data_parallel_size(2);
  if (held.grad_reduce_in_bf16()) parallel->set_grad_reduce_in_bf16(true);
  if (held.sparse_gradients()) parallel->set_sparse_gradients(true);
  if (held.has_communication_data_type())
    parallel->set_communication_data_type(held.communication_data_type());
  const int64_t batch = config.train().global_batch_size();
  simple.mutable_train()->set_global_batch_size(batch + batch % 2);
  // Smaller batches need not be even, either.
  simple.mutable_train()->clear_rampup_batch_size();
  simple.mutable_train()->clear_step_batch_size_schedule();
  return simple;
}

std::string DescribeLosses(const LayoutAxes& axes) {
  std::vector<std::string> fields;
  if (axes.quantizes_weights) fields.push_back("parallel.zero_quantized_weights");
  if (axes.quantizes_gradients) fields.push_back("parallel.zero_quantized_gradients");
  if (fields.empty()) return "";
  return absl::StrCat(absl::StrJoin(fields, " and "), fields.size() == 1 ? " changes" : " change",
                      " the loss, and a layout has it because the configuration does");
}

std::string DescribeLayout(const LayoutAxes& axes) {
  std::vector<std::string> parts;
  if (axes.tensor > 1) {
    parts.push_back(absl::StrCat("tp ", axes.tensor, axes.is_sequence_parallel ? " sp" : ""));
    if (axes.grid.is_grid()) absl::StrAppend(&parts.back(), " ", ModeOf(axes.grid));
    if (!axes.grid.is_cube && axes.grid.depth > 1)
      absl::StrAppend(&parts.back(), " of depth ", axes.grid.depth);
  }
  if (axes.context > 1) {
    parts.push_back(absl::StrCat(
        "cp ", axes.context, " ",
        config::ContextParallelComm::Type_Name(CommTypeOf(axes.context_form)),
        axes.context_form == PlanContext::kTeams ? absl::StrCat(" in teams of ", axes.context_team)
                                                 : ""));
  }
  if (axes.pipeline > 1) {
    parts.push_back(absl::StrCat(
        "pp ", axes.pipeline, axes.chunks > 1 ? absl::StrCat(" x ", axes.chunks) : "",
        axes.schedule == PlanSchedule::kOneForwardOneBackward ? ""
                                                              : absl::StrCat(" ", NameOf(axes))));
    if (axes.last_layers > 0)
      parts.back() += absl::StrCat(" with ", axes.last_layers, " layers on the last stage");
    if (axes.encoder_stages > 0)
      parts.back() += absl::StrCat(" with the encoder on ", axes.encoder_stages);
  }
  if (axes.expert > 1) parts.push_back(absl::StrCat("ep ", axes.expert));
  if (axes.expert_tensor > 1) parts.push_back(absl::StrCat("etp ", axes.expert_tensor));
  parts.push_back(absl::StrCat("dp ", axes.data, axes.data_is_outermost ? " outermost" : ""));
  parts.push_back(absl::StrCat("micro-batch ", axes.micro_batch));
  if (axes.recompute == PlanRecompute::kSelective) parts.push_back("recompute selective");
  if (axes.recompute == PlanRecompute::kFull) parts.push_back("recompute full");
  if (axes.shared_out == SharedOut::kOptimizer) parts.push_back("ZeRO-1");
  if (axes.shared_out == SharedOut::kGradients) parts.push_back("ZeRO-2");
  if (axes.shared_out == SharedOut::kWeights) parts.push_back("ZeRO-3");
  if (axes.instances > 1) {
    parts.back() += absl::StrCat(" in ", axes.instances, " instances",
                                 axes.instances_share_states ? " that share states" : "");
  }
  if (axes.hosts > 1)
    parts.back() += absl::StrCat(" with secondary shards in ", axes.hosts, " hosts");
  if (axes.quantizes_weights) parts.push_back("weights sent in 8 bits");
  if (axes.quantizes_gradients) parts.push_back("gradients sent in 4 bits");
  if (axes.ranks_per_host > 0) {
    parts.push_back(absl::StrCat("hierarchical collectives in hosts of ", axes.ranks_per_host));
  }
  if (axes.deduplicates_dispatch) parts.push_back("deduplicated dispatch");
  if (axes.host_fraction > 0) {
    const std::string part =
        axes.host_fraction == 1 ? "" : absl::StrCat(" by ", axes.host_fraction);
    const char* const weights = axes.weights_on_host && !axes.states_in_files ? " and weights" : "";
    parts.push_back(absl::StrCat("optimizer", part, weights,
                                 axes.states_in_files ? " in files" : " on the host"));
    if (axes.weights_on_host && axes.states_in_files) parts.push_back("weights on the host");
  }
  if (axes.activations_on_host) parts.push_back("activations on the host");
  if (axes.attention_chunk_on_host > 0) {
    parts.push_back(absl::StrCat("attention in chunks of ", axes.attention_chunk_on_host,
                                 " tokens on the host"));
  }
  return absl::StrJoin(parts, ", ");
}

}  // namespace megatron
