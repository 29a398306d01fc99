#include "megatron/train/trainer/run_options.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "glog/logging.h"
#include "megatron/base/thread_pool.h"
#include "megatron/federated/federated_options.h"
#include "megatron/optim/mup.h"
#include "megatron/tensor/cuda_device.h"
#include "megatron/train/config/batch_sizes.h"
#include "megatron/train/config/elastic_batch.h"
#include "megatron/train/costs/layer_shape.h"
#include "megatron/train/recipes/model_rules_of.h"
#include "megatron/train/recipes/recipes.h"
#include "megatron/train/trainer/data_section.h"
#include "megatron/train/trainer/model_section.h"
#include "megatron/train/trainer/parallel_section.h"
#include "megatron/train/trainer/pipeline_section.h"
#include "megatron/train/trainer/run_identity.h"

namespace megatron {
namespace {

// Names without the part that those of adapters have (layers/low_rank_adapter.h).
constexpr char kAllButAdapters[] = "^(?!.*\\.adapter\\.)";

DataSharding ToSharding(const config::ParallelConfig& config) {
  if (!config.use_distributed_optimizer()) return DataSharding::kNone;
  switch (config.data_parallel_sharding_strategy()) {
    case config::DataParallelSharding::optim:
      return DataSharding::kStates;
    case config::DataParallelSharding::optim_grads:
      return DataSharding::kGradients;
    case config::DataParallelSharding::optim_grads_params:
      return DataSharding::kWeights;
  }
  return DataSharding::kNone;
}

OptimizerOptions::Kind ToOptimizerKind(config::Optimizer::Type optimizer) {
  switch (optimizer) {
    case config::Optimizer::adam:
      return OptimizerOptions::kAdamW;
    case config::Optimizer::sgd:
      return OptimizerOptions::kSgd;
    case config::Optimizer::lion:
      return OptimizerOptions::kLion;
    case config::Optimizer::muon:
      return OptimizerOptions::kMuon;
    case config::Optimizer::lamb:
      return OptimizerOptions::kLamb;
    case config::Optimizer::onebit_adam:
      return OptimizerOptions::kOneBitAdam;
    case config::Optimizer::zero_one_adam:
      return OptimizerOptions::kZeroOneAdam;
    case config::Optimizer::onebit_lamb:
      return OptimizerOptions::kOneBitLamb;
  }
  LOG(FATAL) << "there is no optimizer " << optimizer;
}

bool AveragesBySigns(OptimizerOptions::Kind kind) {
  return kind == OptimizerOptions::kOneBitAdam || kind == OptimizerOptions::kZeroOneAdam ||
         kind == OptimizerOptions::kOneBitLamb;
}

OuterGradientType ToOuterGradientType(config::OuterGradient::Type type) {
  switch (type) {
    case config::OuterGradient::fp32:
      return OuterGradientType::kFloat32;
    case config::OuterGradient::int8:
      return OuterGradientType::kInt8;
    case config::OuterGradient::e3m0:
      return OuterGradientType::kE3M0;
  }
  LOG(FATAL) << "there is no form " << type;
}

FederatedOptions ToFederatedOptions(const config::FederatedConfig& config) {
  FederatedOptions options;
  options.clip_norm = config.clip_norm();
  options.secure_sum_threshold = static_cast<int>(config.secure_sum_threshold());
  options.noise_multiplier = config.noise_multiplier();
  options.delta = config.delta();
  options.max_epsilon = config.max_epsilon();
  return options;
}

CompressionType ToCompressionType(config::GradientCompression::Type type) {
  switch (type) {
    case config::GradientCompression::none:
      return CompressionType::kNone;
    case config::GradientCompression::int8:
      return CompressionType::kInt8;
    case config::GradientCompression::topk:
      return CompressionType::kTopK;
    case config::GradientCompression::powersgd:
      return CompressionType::kPowerSgd;
    case config::GradientCompression::threshold:
      return CompressionType::kThreshold;
  }
  LOG(FATAL) << "there is no form " << type;
}

GradientCompressionOptions ToCompression(const config::PretrainConfig& run) {
  GradientCompressionOptions options;
  const OptimizerOptions::Kind kind = ToOptimizerKind(run.optimizer().optimizer());
  if (AveragesBySigns(kind)) {
    options.type = CompressionType::kOneBit;
    options.joins_tensors = kind == OptimizerOptions::kOneBitLamb;
    return options;
  }
  const config::GradientCompressionConfig& config = run.gradient_compression();
  options.type = ToCompressionType(config.type());
  options.start_iteration = config.start_iteration();
  options.error_feedback = config.error_feedback();
  options.density = config.density();
  options.threshold = static_cast<float>(config.threshold());
  options.max_density = config.max_density();
  options.rank = static_cast<int>(config.matrix_approximation_rank());
  options.min_compression_rate = config.min_compression_rate();
  return options;
}

// A rank has its summand of the gradient of the whole batch. DeepSpeed's ranks have the gradient of
// their own samples' mean, which is that times the number of ranks.
void SetGradientDType(const config::ParallelConfig& config, DataParallelOptions* options) {
  if (config.grad_reduce_in_bf16()) options->gradient_dtype = DType::kBFloat16;
  if (config.communication_data_type() == config::CommunicationDataType::fp32) return;
  options->gradient_dtype = config.communication_data_type() == config::CommunicationDataType::fp16
                                ? DType::kFloat16
                                : DType::kBFloat16;
  if (config.prescale_gradients()) return;
  const auto ranks =
      static_cast<double>(config.data_parallel_size() * config.context_parallel_size());
  options->gradient_scale = static_cast<float>(ranks / config.gradient_predivide_factor());
}

// A step has a gradient in as many rows as it has tokens on a rank, or fewer.
void SetSparseTable(const config::PretrainConfig& config, TrainerOptions* options) {
  if (!config.parallel().sparse_gradients()) return;
  const PackerOptions& packing = options->packing;
  const int64_t tokens = packing.max_micro_batches * packing.layout.micro_batch_size *
                         (packing.seq_length + packing.encoder_seq_length);
  options->data_parallel.sparse_table = "embedding.word_embeddings.weight";
  options->data_parallel.most_sparse_rows =
      (tokens + config.parallel().context_parallel_size() - 1) /
      config.parallel().context_parallel_size();
}

DType ToDType(config::MomentDtype::Type dtype) {
  switch (dtype) {
    case config::MomentDtype::bf16:
      return DType::kBFloat16;
    case config::MomentDtype::fp8:
      return DType::kUInt8;
    default:
      return DType::kFloat32;
  }
}

// Muon's modes are numbered as those of the configuration.
static_assert(static_cast<int>(MuonScaleMode::kSpectral) == config::MuonScaleMode::spectral &&
              static_cast<int>(MuonScaleMode::kUnitRmsNorm) ==
                  config::MuonScaleMode::unit_rms_norm &&
              static_cast<int>(MuonScaleMode::kShapeScaling) ==
                  config::MuonScaleMode::shape_scaling);
static_assert(static_cast<int>(MuonTensorMode::kBlockwise) == config::MuonTpMode::blockwise &&
              static_cast<int>(MuonTensorMode::kDuplicated) == config::MuonTpMode::duplicated &&
              static_cast<int>(MuonTensorMode::kDistributed) == config::MuonTpMode::distributed);

MuonOptions ToMuonOptions(const config::OptimizerConfig& config) {
  MuonOptions options;
  options.momentum = config.muon_momentum();
  options.nesterov = config.muon_use_nesterov();
  options.num_ns_steps = static_cast<int>(config.muon_num_ns_steps());
  options.scale_mode = static_cast<MuonScaleMode>(config.muon_scale_mode());
  options.extra_scale_factor = config.muon_extra_scale_factor();
  options.split_qkv = config.muon_split_qkv();
  options.tensor_mode = static_cast<MuonTensorMode>(config.muon_tp_mode());
  options.product_dtype = config.muon_fp32_matmul_prec() == config::MatmulPrecision::high
                              ? DType::kFloat32
                              : DType::kBFloat16;
  return options;
}

QkClipOptions ToQkClipOptions(const config::OptimizerConfig& config) {
  return {config.qk_clip(), config.qk_clip_threshold(), config.qk_clip_alpha()};
}

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

OptimizerOptions ToOptimizerOptions(const config::OptimizerConfig& config) {
  OptimizerOptions options;
  options.kind = ToOptimizerKind(config.optimizer());
  options.adam_beta1 = config.adam_beta1();
  options.adam_beta2 = config.adam_beta2();
  options.adam_epsilon = config.adam_eps();
  options.exp_avg_dtype = ToDType(config.exp_avg_dtype());
  options.exp_avg_sq_dtype = ToDType(config.exp_avg_sq_dtype());
  options.store_param_remainders = config.store_param_remainders();
  options.sgd_momentum = config.sgd_momentum();
  options.lion_beta1 = config.lion_beta1();
  options.lion_beta2 = config.lion_beta2();
  options.muon = ToMuonOptions(config);
  options.lamb_min_coeff = config.lamb_min_coeff();
  options.lamb_max_coeff = config.lamb_max_coeff();
  options.one_bit_adam_freeze_step = config.freeze_step();
  options.one_bit_lamb = {
      config.freeze_step(), config.lamb_min_coeff(), config.lamb_max_coeff(),  config.coeff_beta(),
      config.factor_max(),  config.factor_min(),     config.factor_threshold()};
  options.zero_one = {config.var_freeze_step(), config.var_update_scaler(),
                      config.local_step_scaler(), config.local_step_clipper()};
  return options;
}

// The styles of lr_scheduler.h are numbered as those of the configuration.
template <typename Style>
constexpr bool Same(Style style, int in_config) {
  return static_cast<int>(style) == in_config;
}
static_assert(Same(LrDecayStyle::kConstant, config::LrDecayStyle::constant) &&
              Same(LrDecayStyle::kLinear, config::LrDecayStyle::linear) &&
              Same(LrDecayStyle::kCosine, config::LrDecayStyle::cosine) &&
              Same(LrDecayStyle::kInverseSquareRoot, config::LrDecayStyle::inverse_square_root) &&
              Same(LrDecayStyle::kWsd, config::LrDecayStyle::WSD));
static_assert(Same(WsdDecayStyle::kExponential, config::LrWsdDecayStyle::exponential) &&
              Same(WsdDecayStyle::kLinear, config::LrWsdDecayStyle::linear) &&
              Same(WsdDecayStyle::kCosine, config::LrWsdDecayStyle::cosine) &&
              Same(WsdDecayStyle::kMinusSqrt, config::LrWsdDecayStyle::minus_sqrt));
static_assert(Same(WeightDecayStyle::kConstant, config::WeightDecayIncrStyle::constant) &&
              Same(WeightDecayStyle::kLinear, config::WeightDecayIncrStyle::linear) &&
              Same(WeightDecayStyle::kCosine, config::WeightDecayIncrStyle::cosine));

OptimizerParamSchedule ToSchedule(const config::PretrainConfig& config) {
  const config::OptimizerConfig& optimizer = config.optimizer();
  const int64_t batch = config.train().global_batch_size();
  OptimizerParamSchedule schedule;
  schedule.max_lr = optimizer.lr();
  schedule.min_lr = optimizer.min_lr();
  schedule.init_lr = optimizer.lr_warmup_init();
  const bool in_samples = config.train().has_train_samples();
  schedule.lr_decay_steps =
      in_samples ? optimizer.lr_decay_samples() : optimizer.lr_decay_iters() * batch;
  schedule.lr_warmup_steps =
      optimizer.has_lr_warmup_fraction()
          ? static_cast<int64_t>(optimizer.lr_warmup_fraction() *
                                 static_cast<double>(schedule.lr_decay_steps))
      : in_samples ? optimizer.lr_warmup_samples()
                   : optimizer.lr_warmup_iters() * batch;
  schedule.lr_decay_style = static_cast<LrDecayStyle>(optimizer.lr_decay_style());
  schedule.wsd_decay_style = static_cast<WsdDecayStyle>(optimizer.lr_wsd_decay_style());
  schedule.wsd_decay_steps =
      in_samples ? optimizer.lr_wsd_decay_samples() : optimizer.lr_wsd_decay_iters() * batch;
  if (optimizer.has_decoupled_lr()) {
    schedule.decoupled_max_lr = optimizer.decoupled_lr();
    schedule.decoupled_min_lr = optimizer.decoupled_min_lr();
  }
  schedule.scaled_lr_factor =
      MupLrFactor(ToOptimizerKind(optimizer.optimizer()), MupWidthMult(config.model()));
  schedule.start_weight_decay = optimizer.start_weight_decay();
  schedule.end_weight_decay = optimizer.end_weight_decay();
  schedule.weight_decay_steps =
      in_samples ? config.train().train_samples() : config.train().train_iters() * batch;
  schedule.weight_decay_style = static_cast<WeightDecayStyle>(optimizer.weight_decay_incr_style());
  return schedule;
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
  options.data_parallel.overlap_grad_reduce = config.parallel().overlap_grad_reduce();
  options.data_parallel.overlap_param_gather = config.parallel().overlap_param_gather();
  options.outer.sync_every = config.diloco().sync_every();
  options.outer.lr = config.diloco().outer_lr();
  options.outer.momentum = config.diloco().outer_momentum();
  options.outer.nesterov = config.diloco().nesterov();
  options.outer.gradient_type = ToOuterGradientType(config.diloco().outer_gradient_dtype());
  options.outer.num_fragments = static_cast<int>(config.diloco().num_fragments());
  options.outer.sync_delay = config.diloco().fragment_sync_delay();
  options.outer.update_alpha = config.diloco().fragment_update_alpha();
  options.outer.last_step = config.train().train_iters();
  options.outer.elsewhere = config.diloco().has_server_address();
  if (options.outer.elsewhere) {
    options.islands.server_address = config.diloco().server_address();
    options.islands.secret_file = config.diloco().secret_file();
    options.islands.island = static_cast<int>(config.diloco().island());
    options.islands.agreement = IslandAgreementText(config);
    options.islands.outer = {options.outer.lr, options.outer.momentum, options.outer.nesterov};
    options.islands.gradient_type = options.outer.gradient_type;
    options.islands.federated = ToFederatedOptions(config.federated());
  }
  options.bucket_size = config.parallel().ddp_bucket_size();
  SetGradientDType(config.parallel(), &options.data_parallel);
  options.data_parallel.secondary_shards = SecondaryShardRanks(config.parallel()) > 1;
  options.data_parallel.quantized_weights = config.parallel().zero_quantized_weights();
  options.data_parallel.quantized_gradients = config.parallel().zero_quantized_gradients();
  options.data_parallel.compression = ToCompression(config);
  options.data_parallel.float8_param_gather = config.precision().fp8_param_gather();
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
  SetSparseTable(config, &options);
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
  options.fuse_bias_gradients = system.fuse_bias_gradients();
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
