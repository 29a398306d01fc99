#include "megatron/train/planning/planned_run.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "megatron/base/status_macros.h"
#include "megatron/pipeline/schedule_kind.h"
#include "megatron/plan/model_costs.h"
#include "megatron/plan/shared_cores.h"
#include "megatron/train/config/layer_pattern.h"
#include "megatron/train/costs/layer_shape.h"
#include "megatron/train/recipes/model_rules_of.h"
#include "megatron/train/trainer/parallel_section.h"
#include "megatron/train/trainer/pipeline_section.h"

namespace megatron {
namespace {

void SetHybridLayers(const config::ModelConfig& config, const std::string& letters,
                     PlanModel* model) {
  model->set_hybrid_layers(letters);
  model->set_mamba_heads(double(config.mamba_num_heads()));
  model->set_mamba_head_dim(double(config.mamba_head_dim()));
  model->set_mamba_groups(double(config.mamba_num_groups()));
  model->set_mamba_state(double(config.mamba_state_dim()));
  model->set_mamba_norm_all_groups(config.mamba_norm_all_groups());
  model->set_delta_key_heads(double(config.linear_num_key_heads()));
  model->set_delta_key_dim(double(config.linear_key_head_dim()));
  model->set_delta_value_heads(double(config.linear_num_value_heads()));
  model->set_delta_value_dim(double(config.linear_value_head_dim()));
  model->set_delta_taps(double(config.linear_conv_kernel_dim()));
}

// Returns the share of the layers with attention that see a window. `letters` are those of a hybrid
// model, or none.
double WindowedShare(const std::vector<bool>& has_window, const std::string& letters) {
  double windowed = 0, all = 0;
  for (size_t i = 0; i < has_window.size(); ++i) {
    if (!letters.empty() && letters[i] != '*') continue;
    windowed += has_window[i];
    ++all;
  }
  return all > 0 ? windowed / all : 0;
}

absl::StatusOr<PlanModel> ToPlanModel(const config::ModelConfig& config,
                                      int64_t padded_vocab_size) {
  if (config.attention_output_gate()) {
    return absl::UnimplementedError(
        "model.attention_output_gate: times of gated attention are not predicted");
  }
  const LayerShape layer = ToLayerShape(config);
  PlanModel model;
  model.set_layers(static_cast<int32_t>(config.num_layers()));
  model.set_hidden(double(layer.hidden));
  model.set_ffn(double(layer.ffn));
  model.set_heads(double(config.num_attention_heads()));
  model.set_kv_heads(double(config.num_query_groups()));
  model.set_head_dim(double(config.kv_channels()));
  model.set_vocab(double(padded_vocab_size));
  model.set_is_gated(layer.is_gated);
  model.set_is_tied(!config.untie_embeddings_and_output_weights());
  model.set_is_bidirectional(config.model_type() == config::ModelType::bert);
  if (config.model_type() == config::ModelType::t5) {
    model.set_layers(static_cast<int32_t>(TotalLayers(config)));
    model.set_encoder_layers(static_cast<int32_t>(config.encoder_num_layers()));
    model.set_encoder_sequence(double(config.seq_length()));
  }
  std::string letters;
  if (config.has_hybrid_layer_pattern()) {
    MEGATRON_ASSIGN_OR_RETURN(letters, HybridLayers(config));
    SetHybridLayers(config, letters, &model);
  }
  if (config.has_window_size()) {
    MEGATRON_ASSIGN_OR_RETURN(const std::vector<bool> has_window, WindowLayers(config));
    model.set_window(double(config.window_size() + 1));
    model.set_windowed_share(WindowedShare(has_window, letters));
  }
  if (layer.num_experts == 0) return model;
  model.set_experts(double(layer.num_experts));
  model.set_experts_per_token(double(layer.experts_per_token));
  model.set_expert_ffn(double(layer.expert_ffn));
  model.set_shared_ffn(double(layer.shared_expert_ffn));
  if (!letters.empty()) {
    model.set_dense_layers(static_cast<int32_t>(std::count(letters.begin(), letters.end(), '-')));
    return model;
  }
  MEGATRON_ASSIGN_OR_RETURN(const std::vector<bool> is_mixture,
                            ParseLayerPattern(config.moe_layer_freq(), config.num_layers()));
  model.set_dense_layers(
      static_cast<int32_t>(std::count(is_mixture.begin(), is_mixture.end(), false)));
  return model;
}

PlanRecompute ToPlanRecompute(const config::RecomputeConfig& config) {
  switch (config.recompute_granularity()) {
    case config::RecomputeGranularity::selective:
      return PlanRecompute::kSelective;
    case config::RecomputeGranularity::full:
      return PlanRecompute::kFull;
    default:
      return PlanRecompute::kNone;
  }
}

PlanPrecision ToPlanPrecision(const config::PrecisionConfig& config) {
  if (config.fp8_format() != config::Fp8Format::none) return PlanPrecision::kFp8;
  return config.bf16() || config.fp16() ? PlanPrecision::k16Bits : PlanPrecision::k32Bits;
}

PlanContext ToPlanContext(config::ContextParallelComm::Type form) {
  switch (form) {
    case config::ContextParallelComm::a2a:
      return PlanContext::kAllToAll;
    case config::ContextParallelComm::allgather:
      return PlanContext::kGather;
    case config::ContextParallelComm::a2a_p2p:
      return PlanContext::kTeams;
    default:
      return PlanContext::kRing;
  }
}

// Codes of 8 bits have a scale of 32 bits for 256 elements, those of 4 bits one of 8 bits for 128
// (docs/diloco.md).
double OuterCodeBytes(config::OuterGradient::Type dtype) {
  switch (dtype) {
    case config::OuterGradient::int8:
      return 1 + 4.0 / 256;
    case config::OuterGradient::e3m0:
      return 0.5 + 1.0 / 128;
    default:
      return 0;
  }
}

void SetOptimizer(const config::OptimizerConfig& optimizer, PlanLayout* layout) {
  layout->is_lamb = optimizer.optimizer() == config::Optimizer::lamb;
  layout->clips_scores = optimizer.qk_clip();
  if (optimizer.optimizer() != config::Optimizer::muon) return;
  layout->muon_steps = optimizer.muon_num_ns_steps();
  layout->muon_in_16_bits = optimizer.muon_fp32_matmul_prec() == config::MatmulPrecision::medium;
  layout->muon_splits_qkv = optimizer.muon_split_qkv();
  if (optimizer.muon_tp_mode() == config::MuonTpMode::duplicated)
    layout->muon_mode = PlanMuonMode::kDuplicated;
  if (optimizer.muon_tp_mode() == config::MuonTpMode::distributed)
    layout->muon_mode = PlanMuonMode::kDistributed;
}

// How many elements are above a threshold is not known: priced are the most that are sent.
PlanCompression ToPlanCompression(const config::GradientCompressionConfig& config) {
  PlanCompression compression;
  switch (config.type()) {
    case config::GradientCompression::none:
      break;
    case config::GradientCompression::int8:
      compression.form = PlanCompression::kCodes;
      break;
    case config::GradientCompression::topk:
      compression.form = PlanCompression::kLargest;
      compression.density = config.density();
      break;
    case config::GradientCompression::threshold:
      compression.form = PlanCompression::kLargest;
      compression.density = config.max_density();
      break;
    case config::GradientCompression::powersgd:
      compression.form = PlanCompression::kLowRank;
      compression.rank = double(config.matrix_approximation_rank());
      compression.least_gain = config.min_compression_rate();
      break;
  }
  return compression;
}

Implementation::Route ToRoute(config::CollectiveAlgorithm::Type algorithm) {
  switch (algorithm) {
    case config::CollectiveAlgorithm::ring:
      return Implementation::RING;
    case config::CollectiveAlgorithm::tree:
      return Implementation::TREE;
    default:
      return Implementation::MESH;
  }
}

PlanSchedule ToPlanSchedule(ScheduleKind kind) {
  switch (kind) {
    case ScheduleKind::kZeroBubbleH1:
      return PlanSchedule::kZeroBubbleH1;
    case ScheduleKind::kZeroBubbleV:
      return PlanSchedule::kZeroBubbleV;
    case ScheduleKind::kGPipe:
      return PlanSchedule::kGPipe;
    default:
      return PlanSchedule::kOneForwardOneBackward;
  }
}

void SetPipeline(const config::PretrainConfig& config, PlanLayout* layout) {
  if (layout->pp == 1) return;
  layout->schedule = ToPlanSchedule(ToScheduleKind(config.parallel()));
  if (config.parallel().has_pipeline_model_parallel_split_rank()) {
    layout->encoder_stages = config.parallel().pipeline_model_parallel_split_rank();
    return;
  }
  const std::vector<int64_t> layers = ToPlacement(config).layers;
  if (layers.empty()) return;
  layout->first_layers = layers.front();
  layout->last_layers = layers.back();
}

PlanLayout ToPlanLayout(const config::PretrainConfig& config) {
  const config::ParallelConfig& parallel = config.parallel();
  PlanLayout layout;
  layout.tp = parallel.tensor_model_parallel_size();
  const TensorGridShape grid = TensorGridShapeOf(parallel).value_or(TensorGridShape());
  layout.grid = {grid.side, grid.depth, grid.is_cube};
  layout.cp = parallel.context_parallel_size();
  layout.context = ToPlanContext(parallel.cp_comm_type());
  if (layout.context == PlanContext::kTeams)
    layout.cp_team = parallel.hierarchical_context_parallel_sizes(0);
  layout.pp = parallel.pipeline_model_parallel_size();
  layout.vpp = ChunksOf(config);
  SetPipeline(config, &layout);
  layout.dp = parallel.data_parallel_size();
  layout.data_is_outermost = parallel.rank_order() == kDataOutermost;
  if (config.model().num_experts() > 0) {
    layout.ep = parallel.expert_model_parallel_size();
    layout.etp = parallel.expert_tensor_parallel_size();
    layout.drops_tokens = config.model().has_moe_expert_capacity_factor();
  }
  layout.micro_batch = config.train().micro_batch_size();
  layout.micro_batches =
      std::max<int64_t>(1, config.train().global_batch_size() / (layout.micro_batch * layout.dp));
  layout.sequence = ModelRulesOf(config.model()).LengthsOf(config.model()).seq_length;
  layout.recompute = ToPlanRecompute(config.recompute());
  layout.precision = ToPlanPrecision(config.precision());
  layout.mlp_chunk = config.recompute().mlp_chunk_tokens();
  layout.logits_chunk = config.train().logits_chunk_tokens();
  layout.attention_chunk = config.recompute().attention_chunk_tokens();
  layout.attention_chunks_on_host = config.recompute().attention_chunks_on_host() &&
                                    config.system().device() == config::Device::cuda;
  layout.activations_on_host =
      config.system().device() == config::Device::cuda && OffloadsAllLayers(config);
  SetOptimizer(config.optimizer(), &layout);
  layout.is_sequence_parallel = parallel.sequence_parallel();
  if (config.system().device() == config::Device::cuda &&
      config.optimizer().optimizer_cpu_offload()) {
    layout.host_fraction = config.optimizer().optimizer_offload_fraction();
    layout.states_in_files = !config.optimizer().optimizer_offload_path().empty();
    layout.weights_on_host = parallel.param_cpu_offload();
  }
  if (parallel.use_distributed_optimizer()) {
    const auto shared_out = parallel.data_parallel_sharding_strategy();
    layout.shards_parameters = shared_out == config::DataParallelSharding::optim_grads_params;
    layout.shards_gradients = shared_out == config::DataParallelSharding::optim_grads;
    layout.instances = parallel.num_distributed_optimizer_instances();
    layout.shards_states_over_instances =
        parallel.outer_dp_sharding_strategy() == config::OuterSharding::optim;
    layout.quantizes_weights = parallel.zero_quantized_weights();
    layout.quantizes_gradients = parallel.zero_quantized_gradients();
    if (const int64_t ranks = SecondaryShardRanks(parallel); ranks > 1)
      layout.hosts = std::max<int64_t>(1, layout.dp * layout.cp / ranks);
    layout.sync_every = config.diloco().sync_every();
    layout.outer_code_bytes = OuterCodeBytes(config.diloco().outer_gradient_dtype());
  }
  layout.compression = ToPlanCompression(config.gradient_compression());
  layout.ranks_per_host = parallel.hierarchical_collectives_ranks_per_host();
  layout.deduplicates_dispatch = layout.ep > 1 && parallel.moe_deduplicated_dispatch();
  return layout;
}

// Returns the bytes of an element of the gradients that ranks send each other.
double SentGradientBytes(const config::PretrainConfig& config) {
  const config::ParallelConfig& parallel = config.parallel();
  const bool is_narrow =
      parallel.grad_reduce_in_bf16() ||
      parallel.communication_data_type() != config::CommunicationDataType::fp32 ||
      config.optimizer().main_grads_dtype() != config::MainGradsDtype::fp32;
  return is_narrow ? 2 : 4;
}

}  // namespace

bool OffloadsAllLayers(const config::PretrainConfig& config) {
  const config::RecomputeConfig& recompute = config.recompute();
  const config::ModelConfig& model = config.model();
  if (recompute.cpu_offloading_num_layers() == 0 || recompute.offload_modules_size() > 0 ||
      model.has_hybrid_layer_pattern() || model.model_type() == config::ModelType::t5) {
    return false;
  }
  const StagePlacement placement = ToPlacement(config);
  const int64_t most = placement.layers.empty()
                           ? model.num_layers() / (placement.stages * placement.chunks)
                           : *std::max_element(placement.layers.begin(), placement.layers.end());
  return recompute.cpu_offloading_num_layers() >= most;
}

void SetHeldCommunication(const config::PretrainConfig& config, PlannedRun* run) {
  run->program.set_gradient_bytes(SentGradientBytes(config));
  run->program.set_route(ToRoute(config.parallel().collective_algorithm()));
  run->layout.overlaps_forward = config.parallel().tp_comm_overlap();
}

absl::StatusOr<PlannedRun> ToPlannedRun(const config::PretrainConfig& config,
                                        int64_t padded_vocab_size, const Implementation& own) {
  PlannedRun run;
  MEGATRON_ASSIGN_OR_RETURN(run.model, ToPlanModel(config.model(), padded_vocab_size));
  run.layout = ToPlanLayout(config);
  run.program = own;
  const config::ParallelConfig& parallel = config.parallel();
  run.program.set_shards_optimizer(parallel.use_distributed_optimizer());
  run.program.set_overlaps_gradients(parallel.overlap_grad_reduce());
  SetHeldCommunication(config, &run);
  return run;
}

bool IsProcessor(const Hardware& hardware) {
  return hardware.cores() > 0 || hardware.name() == "CPU";
}

Hardware HardwareOfRun(const config::PretrainConfig& config, int64_t ranks, Hardware hardware) {
  if (IsProcessor(hardware) && config.parallel().ranks_as() == config::RanksAs::processes) {
    hardware.set_domain(1);
  }
  const int64_t threads = config.system().num_threads();
  return threads == 0 ? hardware : WithFewerCores(hardware, std::max(threads, ranks));
}

}  // namespace megatron
