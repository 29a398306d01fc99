#include "megatron/train/trainer/run_options.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "glog/logging.h"
#include "megatron/base/thread_pool.h"
#include "megatron/tensor/cuda_device.h"
#include "megatron/train/config/batch_sizes.h"
#include "megatron/train/config/elastic_batch.h"
#include "megatron/train/recipes/model_rules_of.h"
#include "megatron/train/recipes/recipes.h"
#include "megatron/train/trainer/data_parallel_section.h"
#include "megatron/train/trainer/data_section.h"
#include "megatron/train/trainer/model_section.h"
#include "megatron/train/trainer/optimizer_section.h"
#include "megatron/train/trainer/parallel_section.h"
#include "megatron/train/trainer/pipeline_section.h"

namespace megatron {
namespace {

// Names without the part that those of adapters have (layers/low_rank_adapter.h).
constexpr char kAllButAdapters[] = "^(?!.*\\.adapter\\.)";

RerunOptions ToRerunOptions(const config::PretrainConfig& run) {
  constexpr int64_t kStepsBeforeSpikes = 100;
  const config::TrainConfig& config = run.train();
  RerunOptions options;
  if (config.rerun_mode() == config::RerunMode::validate_results)
    options.mode = RerunMode::kValidateResults;
  if (config.rerun_mode() == config::RerunMode::report_stats)
    options.mode = RerunMode::kReportStats;
  options.interval = config.rerun_interval();
  if (config.check_for_spiky_loss()) options.spiky_loss_after = kStepsBeforeSpikes;
  options.gradients_may_overflow = run.precision().fp16() && !run.precision().has_loss_scale();
  return options;
}

BatchSizeOptions ToBatchSize(const config::PretrainConfig& config) {
  const config::TrainConfig& training = config.train();
  BatchSizeOptions options;
  options.global_batch_size = training.global_batch_size();
  options.granularity = training.micro_batch_size() * config.parallel().data_parallel_size();
  options.uneven = MayShareUnevenly(config);
  const auto steps = BatchSizeSteps(training, config.model().seq_length());
  CHECK(steps.ok()) << steps.status();  // a valid configuration has valid sizes
  options.steps = *steps;
  return options;
}

PrecisionOptions ToPrecision(const config::PrecisionConfig& config) {
  PrecisionOptions options;
  if (!config.fp16()) return options;
  options.dynamic_loss_scale = !config.has_loss_scale();
  if (config.has_loss_scale()) options.constant_loss_scale = config.loss_scale();
  options.dynamic.initial_scale = config.initial_loss_scale();
  options.dynamic.min_scale = config.min_loss_scale();
  options.dynamic.window = config.loss_scale_window();
  options.dynamic.hysteresis = config.hysteresis();
  return options;
}

TrainerOptions ToTrainer(const config::PretrainConfig& config, int64_t vocab_size) {
  const config::TrainConfig& training = config.train();
  TrainerOptions options;
  options.model = ToModelOptions(config, vocab_size);
  options.placement = ToPlacement(config);
  options.pipeline_schedule = ToScheduleKind(config.parallel());
  options.microbatch_group =
      static_cast<int>(config.parallel().microbatch_group_size_per_virtual_pipeline_stage());
  options.action_costs = ToActionCosts(config);
  options.measure_pipeline = config.logging().has_pipeline_timeline_file();
  options.sharding = ToSharding(config.parallel());
  options.shards_states_over_instances =
      config.parallel().outer_dp_sharding_strategy() == config::OuterSharding::optim;
  options.shard_copies = static_cast<int>(config.parallel().shard_copies());
  options.shard_copy_interval = config.parallel().shard_copy_interval();
  options.outer = ToOuterOptimizerOptions(config);
  options.islands = ToIslandLinkOptions(config);
  options.bucket_size = config.parallel().ddp_bucket_size();
  const SampleLengths lengths = ModelRulesOf(config.model()).LengthsOf(config.model());
  options.scores_tokens = config.train().eval_tasks_size() > 0;
  if (config.has_generation()) {
    options.max_generation_context = lengths.seq_length;
    options.max_encoder_context = lengths.encoder_seq_length;
  }
  options.optimizer = ToOptimizerOptions(config.optimizer());
  options.qk_clip = ToQkClipOptions(config.optimizer());
  if (config.optimizer().optimizer_cpu_offload())
    options.host_fraction = config.optimizer().optimizer_offload_fraction();
  options.state_directory = config.optimizer().optimizer_offload_path();
  if (config.optimizer().main_grads_dtype() == config::MainGradsDtype::bf16)
    options.main_grads_dtype = DType::kBFloat16;
  // A search asks for other parts, too.
  if (config.optimizer().delayed_update() && options.host_fraction == 1) {
    options.optimizer.delayed_gradients = options.main_grads_dtype;
    options.prompt_updates = config.optimizer().delayed_update_warmup_steps();
  }
  options.gradients_on_host = config.parallel().grad_cpu_offload();
  options.weights_on_host = config.parallel().param_cpu_offload();
  options.weight_directory = config.parallel().param_offload_path();
  options.schedule = ToSchedule(config);
  options.batch_size = ToBatchSize(config);
  options.curriculum = ToCurriculum(config.data());
  options.random_ltd = ToRandomLtd(config.data());
  options.packing.layout.micro_batch_size = training.micro_batch_size();
  options.packing.layout.data_parallel_size = config.parallel().data_parallel_size();
  options.packing.seq_length = lengths.seq_length;
  options.packing.encoder_seq_length = lengths.encoder_seq_length;
  options.packing.max_micro_batches =
      options.batch_size.MicroBatchesOf(training.global_batch_size());
  options.packing.per_token_loss = training.calculate_per_token_loss();
  options.packing.num_workers = config.data().num_workers();
  options.packing.mtp_depths = options.model.mtp_num_layers;
  if (options.model.mtp_num_layers > 0) {
    options.packing.mtp_loss_factor =
        options.model.mtp_loss_scaling_factor / static_cast<float>(options.model.mtp_num_layers);
  }
  RecipeOf(options.model.kind).SetPacking(config.model(), &options.packing);
  options.data_parallel = ToDataParallelOptions(config, options.packing);
  if (config.parallel().sequence_parallel() && options.packing.lengths_vary())
    options.packing.token_multiple = config.parallel().tensor_model_parallel_size();
  options.clip_grad = config.optimizer().clip_grad();
  options.freeze.assign(config.optimizer().freeze().begin(), config.optimizer().freeze().end());
  if (config.model().has_lora()) options.freeze.push_back(kAllButAdapters);
  options.cuda_graphs.enabled = config.system().cuda_graph_impl() == config::CudaGraphImpl::local;
  options.cuda_graphs.warmup_steps = config.system().cuda_graph_warmup_steps();
  options.log_params_norm = config.logging().log_params_norm();
  options.log_num_zeros_in_grad = config.logging().log_num_zeros_in_grad();
  options.diagnostics_interval = config.logging().diagnostics_interval();
  options.replica_check_interval =
      config.parallel().check_weight_hash_across_dp_replicas_interval();
  options.rerun = ToRerunOptions(config);
  return options;
}

DeviceType DeviceOf(const config::SystemConfig& config) {
  const bool cuda =
      config.has_device() ? config.device() == config::Device::cuda : CudaDeviceCount() > 0;
  return cuda ? DeviceType::kCuda : DeviceType::kCpu;
}

TimerOption ToTimerOption(config::TimingLogOption::Type option) {
  switch (option) {
    case config::TimingLogOption::max:
      return TimerOption::kMax;
    case config::TimingLogOption::minmax:
      return TimerOption::kMinMax;
    case config::TimingLogOption::all:
      return TimerOption::kAll;
  }
  return TimerOption::kMinMax;
}

EvaluationTaskOptions ToEvaluationTasks(const config::PretrainConfig& config) {
  const config::TrainConfig& training = config.train();
  EvaluationTaskOptions options;
  for (const std::string& text : training.eval_tasks()) {
    absl::StatusOr<std::pair<std::string, std::string>> file = SplitTaskAndFile(text);
    if (file.ok()) options.files.push_back(*std::move(file));  // validation refuses others
  }
  options.limit = training.eval_tasks_limit();
  options.overlapping_eval = training.overlapping_eval();
  options.seq_length = config.model().seq_length();
  options.global_batch_size = training.global_batch_size();
  return options;
}

LoopOptions ToLoop(const config::PretrainConfig& config) {
  const config::TrainConfig& training = config.train();
  LoopOptions options;
  options.train_iters = training.train_iters();
  options.iterations_to_skip.insert(training.iterations_to_skip().begin(),
                                    training.iterations_to_skip().end());
  options.eval_interval = training.eval_iters() > 0 ? training.eval_interval() : 0;
  options.eval_iters = training.eval_iters();
  options.eval_tasks_interval = training.eval_tasks_interval();
  options.log_interval = training.log_interval();
  options.exit_interval = training.exit_interval();
  options.phase_transitions.insert(training.phase_transition_iterations().begin(),
                                   training.phase_transition_iterations().end());
  options.exit_duration_minutes = training.exit_duration_in_mins();
  options.log_time = absl::Seconds(config.logging().log_interval_seconds());
  options.log_throughput = config.logging().log_throughput();
  options.spikes = {config.logging().spike_threshold(), config.logging().spike_window()};
  options.timing_log_level = static_cast<int>(config.logging().timing_log_level());
  options.timing_log_option = ToTimerOption(config.logging().timing_log_option());
  options.metrics_file = config.logging().metrics_file();
  options.tensorboard_dir = config.logging().tensorboard_dir();
  options.pipeline_timeline_file = config.logging().pipeline_timeline_file();
  options.on_event = config.logging().on_event();
  options.prometheus_textfile = config.logging().prometheus_textfile();
  if (config.logging().has_metrics_port()) options.metrics_port = config.logging().metrics_port();
  return options;
}

ProfileOptions ToProfile(const config::LoggingConfig& config) {
  ProfileOptions options;
  options.enabled = config.profile();
  options.start = config.profile_step_start();
  options.end = config.profile_step_end();
  options.ranks.assign(config.profile_ranks().begin(), config.profile_ranks().end());
  options.directory = config.profile_dir();
  return options;
}

// On processors, more messages take time from the cores that compute. Without ranks that have
// different experts the field is refused, and nobody could turn it off.
bool DispatchesInParts(const config::ParallelConfig& config, DeviceType device) {
  if (config.has_moe_dispatch_in_parts()) return config.moe_dispatch_in_parts();
  return device == DeviceType::kCuda && config.expert_model_parallel_size() > 1 &&
         config.distributed_backend() != config::DistributedBackend::host;
}

// A file that the user names is followed alone. Several ranks need one file for all.
bool TimesProducts(const config::PretrainConfig& config, int ranks) {
  const config::SystemConfig& system = config.system();
  if (system.has_time_gemm_kernels()) return system.time_gemm_kernels();
  return ranks == 1 && config.parallel().ranks_as() == config::RanksAs::threads &&
         !system.has_gemm_plan_file() && !system.deterministic_mode();
}

GemmOptions ToGemms(const config::PretrainConfig& config, int ranks) {
  const config::SystemConfig& system = config.system();
  const std::string& save = config.checkpoint().save();
  GemmOptions options;
  options.plan_file = system.gemm_plan_file();
  options.time_kernels = TimesProducts(config, ranks);
  if (system.has_fuse_bias_gradients()) options.fuse_bias_gradients = system.fuse_bias_gradients();
  options.fuse_gelu = system.fuse_gelu();
  if (!system.has_gemm_plan_file() && options.time_kernels && !save.empty())
    options.plan_file = absl::StrCat(absl::StripSuffix(save, "/"), "/gemm_plans.textproto");
  return options;
}

GenerationOptions ToGeneration(const config::PretrainConfig& config) {
  const config::GenerationConfig& generation = config.generation();
  GenerationOptions options;
  options.enabled = config.has_generation();
  options.prompt = generation.prompt();
  options.tokens = generation.tokens_to_generate();
  options.sampling = {generation.temperature(), generation.top_k(), generation.top_p(),
                      static_cast<uint64_t>(generation.seed())};
  return options;
}

}  // namespace

std::string DescribeSizes(const ParallelSizes& sizes) {
  const std::string context =
      sizes.context == 1 ? "" : absl::StrCat("context ", sizes.context, " x ");
  const std::string order =
      sizes.order == RankOrder() ? "" : absl::StrCat(", numbered ", sizes.order.ToString());
  return absl::StrCat("tensor ", sizes.tensor, " x ", context, "pipeline ", sizes.pipeline,
                      " x data ", sizes.data, order);
}

TokenizerOptions ToTokenizerOptions(const config::DataConfig& config) {
  TokenizerOptions options;
  options.type = config::Tokenizer::Type_Name(config.tokenizer_type());
  options.vocab_size = config.vocab_size();
  if (config.has_null_tokenizer_eod_id())
    options.null_tokenizer_eod_id = config.null_tokenizer_eod_id();
  if (config.has_null_tokenizer_pad_id())
    options.null_tokenizer_pad_id = config.null_tokenizer_pad_id();
  options.vocab_file = config.vocab_file();
  options.merge_file = config.merge_file();
  options.tokenizer_model = config.tokenizer_model();
  options.vocab_extra_ids = config.vocab_extra_ids();
  options.tiktoken_pattern = config::TiktokenPattern::Type_Name(config.tiktoken_pattern());
  options.tiktoken_num_special_tokens = config.tiktoken_num_special_tokens();
  options.tiktoken_special_tokens.assign(config.tiktoken_special_tokens().begin(),
                                         config.tiktoken_special_tokens().end());
  return options;
}

CheckpointOptions ToCheckpointOptions(const config::CheckpointConfig& config) {
  CheckpointOptions options;
  options.save = config.save();
  options.load = config.load();
  options.save_huggingface = config.save_huggingface();
  options.save_interval = config.save_interval();
  options.keep_last = config.keep_last();
  options.retain_interval = config.save_retain_interval();
  options.async_save = config.async_save();
  options.finetune = config.finetune();
  options.no_load_optim = config.no_load_optim();
  options.use_checkpoint_args = config.use_checkpoint_args();
  if (!config.has_local_save()) return options;
  options.local_save = config.local_save();
  options.local_save_interval = config.local_save_interval();
  options.peer_copies = static_cast<int>(config.peer_copies());
  return options;
}

RanksOptions ToRanksOptions(const config::ParallelConfig& config) {
  RanksOptions options;
  options.processes = config.ranks_as() == config::RanksAs::processes;
  options.restarts = static_cast<int>(config.restarts());
  options.min_data_size = config.min_data_parallel_size();
  options.in_process_recovery = config.in_process_recovery();
  if (options.in_process_recovery)
    options.replacements = static_cast<int>(config.rank_replacements());
  if (config.has_distributed_backend()) {
    options.backend = config.distributed_backend() == config::DistributedBackend::nccl
                          ? DistributedBackend::kNccl
                          : DistributedBackend::kHost;
  }
  options.sum_in_rank_order = config.sum_in_rank_order();
  options.check_collectives = config.check_collectives();
  options.start_timeout = absl::Minutes(config.distributed_timeout_minutes());
  options.timeout = config.has_distributed_timeout_seconds_after_init()
                        ? absl::Seconds(config.distributed_timeout_seconds_after_init())
                        : options.start_timeout;
  options.heartbeat_timeout = absl::Seconds(config.heartbeat_timeout_seconds());
  options.stuck_timeout = absl::Seconds(config.stuck_rank_timeout_seconds());
  return options;
}

PlanningOptions ToPlanningOptions(const config::PretrainConfig& config) {
  PlanningOptions options;
  options.auto_layout = config.train().auto_layout();
  options.ranks = config.train().auto_layout_ranks();
  options.hardware_file = config.system().hardware_file();
  options.kernels_file = config.system().kernels_file();
  return options;
}

RunOptions ToRunOptions(const config::PretrainConfig& config, int64_t vocab_size) {
  RunOptions options;
  options.trainer = ToTrainer(config, vocab_size);
  const absl::StatusOr<ParallelSizes> parallel = ToParallelSizes(config.parallel());
  CHECK(parallel.ok()) << parallel.status();  // Validation has read them.
  options.parallel = *parallel;
  if (const StagePlacement& placement = options.trainer.placement; placement.mtp_before_last) {
    options.parallel.embedding_stages = placement.StagesWithWords(
        options.trainer.model.tied_embeddings, options.trainer.model.mtp_num_layers > 0);
  }
  options.topology_file = config.parallel().topology_file();
  options.planning = ToPlanningOptions(config);
  options.precision = ToPrecision(config.precision());
  options.data = ToDataOptions(config);
  options.SetSources(SourceNames(options.data));
  options.tokenizer = ToTokenizerOptions(config.data());
  options.loop = ToLoop(config);
  options.checkpoint = ToCheckpointOptions(config.checkpoint());
  options.checkpoint.upcycles = config.model().moe_use_upcycling();
  options.generation = ToGeneration(config);
  options.tasks = ToEvaluationTasks(config);
  options.seed = static_cast<uint64_t>(config.train().seed());
  options.device = DeviceOf(config.system());
  options.trainer.model.transformer.moe.dispatch_in_parts =
      DispatchesInParts(config.parallel(), options.device);
  options.bind_cores = config.system().bind_cores_to_rank();
  options.num_threads = config.system().num_threads() > 0
                            ? static_cast<int>(config.system().num_threads())
                            : AvailableCores();
  options.gemms = ToGemms(config, options.num_ranks());
  options.attention = {config.system().attention_backend(), config.system().attention_plan_file()};
  options.deterministic = config.system().deterministic_mode();
  options.ranks = ToRanksOptions(config.parallel());
  options.loop.silence_limit = options.ranks.timeout;
  options.profile = ToProfile(config.logging());
  return options;
}

TrainerOptions RunOptions::TrainerOf(int stage, int data_rank) const {
  TrainerOptions options = trainer;
  options.device = device;
  if (device != DeviceType::kCuda) {
    options.cuda_graphs.enabled = false;
    if (options.state_directory.empty()) options.host_fraction = 0;
    options.gradients_on_host = options.weights_on_host = false;
    options.weight_directory.clear();
    options.model.num_offloaded_layers = 0;
    options.model.attention_on_host = false;
  } else {
    // Attention's kernels for any GPU take no wider heads.
    LatentOptions& latent = options.model.transformer.latent;
    latent.caches_latents = latent.kv_rank + latent.rotated_size <= 256;
  }
  // The fields that say so are for ranks that share weights and gradients out.
  if (options.sharding == DataSharding::kNone) {
    if (options.weights_on_host || options.gradients_on_host)
      options.data_parallel.overlap_grad_reduce = true;
    if (options.weights_on_host) options.data_parallel.overlap_param_gather = true;
  }
  options.placement.stage = stage;
  options.packing.layout.data_parallel_rank = data_rank;
  return options;
}

absl::StatusOr<LossScaler> MakeLossScaler(const PrecisionOptions& options) {
  if (options.dynamic_loss_scale) return LossScaler::CreateDynamic(options.dynamic);
  return LossScaler::MakeConstant(options.constant_loss_scale);
}

}  // namespace megatron
