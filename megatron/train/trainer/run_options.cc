#include "megatron/train/trainer/run_options.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "megatron/base/thread_pool.h"
#include "megatron/tensor/cuda_device.h"
#include "megatron/train/config/config_text.h"
#include "megatron/train/validate/layer_pattern.h"
#include "megatron/train/validate/pipeline_config.h"

namespace megatron {
namespace {

bool Contains(const config::RecomputeConfig& config, config::RecomputeModule::Type module) {
  for (int i = 0; i < config.recompute_modules_size(); ++i) {
    if (config.recompute_modules(i) == module) return true;
  }
  return false;
}

DType ModelDType(const config::PrecisionConfig& config) {
  if (config.bf16()) return DType::kBFloat16;
  return config.fp16() ? DType::kFloat16 : DType::kFloat32;
}

Float8Options ToFloat8(const config::PrecisionConfig& config) {
  Float8Options options;
  options.enabled = config.fp8_format() != config::Fp8Format::none;
  options.gradient =
      config.fp8_format() == config::Fp8Format::e4m3 ? Float8Format::kE4M3 : Float8Format::kE5M2;
  options.weight_gradient = config.fp8_wgrad();
  if (config.first_last_layers_bf16()) {
    options.first_layers_without = config.num_layers_at_start_in_bf16();
    options.last_layers_without = config.num_layers_at_end_in_bf16();
  }
  return options;
}

RecomputeOptions ToRecompute(const config::RecomputeConfig& config) {
  RecomputeOptions options;
  if (config.recompute_granularity() != config::RecomputeGranularity::selective) return options;
  options.core_attention = Contains(config, config::RecomputeModule::core_attn);
  options.mlp = Contains(config, config::RecomputeModule::mlp);
  options.norm = Contains(config, config::RecomputeModule::layernorm);
  return options;
}

LayerRecompute ToLayerRecompute(const config::RecomputeConfig& config) {
  LayerRecompute options;
  if (config.recompute_granularity() != config::RecomputeGranularity::full) return options;
  options.method = config.recompute_method() == config::RecomputeMethod::uniform
                       ? LayerRecompute::kUniform
                       : LayerRecompute::kBlock;
  options.num_layers = config.recompute_num_layers();
  return options;
}

BalanceUnit ToBalanceUnit(const config::ModelConfig& model) {
  if (model.moe_aux_loss_coeff() == 0) return BalanceUnit::kNone;
  switch (model.moe_router_load_balancing_type()) {
    case config::RouterLoadBalancing::seq_aux_loss:
      return BalanceUnit::kSample;
    case config::RouterLoadBalancing::aux_loss:
      return BalanceUnit::kMicroBatch;
    case config::RouterLoadBalancing::global_aux_loss:
      return BalanceUnit::kStep;
    case config::RouterLoadBalancing::none:
    case config::RouterLoadBalancing::sinkhorn:
      break;
  }
  return BalanceUnit::kNone;
}

// Megatron's: the sigmoid of a single choice, the softmax over all experts of several.
ops::Router SinkhornRouter(int topk) {
  ops::Router router;
  router.topk = topk;
  router.score = topk == 1 ? ops::RouterScore::kSigmoid : ops::RouterScore::kSoftmax;
  router.pre_softmax = topk > 1;
  router.choose_by_logit = true;
  return router;
}

MoeOptions ToMoe(const config::ModelConfig& model) {
  MoeOptions options;
  if (!model.has_num_experts()) return options;
  options.num_experts = model.num_experts();
  options.layers = *ParseLayerPattern(model.moe_layer_freq(), model.num_layers());
  options.ffn_hidden_size = model.moe_ffn_hidden_size();
  options.shared_ffn_hidden_size = model.moe_shared_expert_intermediate_size();
  options.router.score = model.moe_router_score_function() == config::RouterScoreFunction::sigmoid
                             ? ops::RouterScore::kSigmoid
                             : ops::RouterScore::kSoftmax;
  options.router.topk = static_cast<int>(model.moe_router_topk());
  options.router.pre_softmax = model.moe_router_pre_softmax();
  options.router.scaling_factor = static_cast<float>(model.moe_router_topk_scaling_factor());
  if (model.has_moe_router_num_groups()) {
    options.router.num_groups = static_cast<int>(model.moe_router_num_groups());
    options.router.group_topk = static_cast<int>(model.moe_router_group_topk());
  }
  options.sinkhorn =
      model.moe_router_load_balancing_type() == config::RouterLoadBalancing::sinkhorn;
  if (options.sinkhorn) options.router = SinkhornRouter(options.router.topk);
  options.input_jitter_eps = static_cast<float>(model.moe_input_jitter_eps());
  options.pad_to_capacity = model.moe_pad_expert_input_to_capacity();
  options.balance = ToBalanceUnit(model);
  options.aux_loss_coeff = static_cast<float>(model.moe_aux_loss_coeff());
  options.z_loss_coeff = static_cast<float>(model.moe_z_loss_coeff());
  options.expert_bias = model.moe_router_enable_expert_bias();
  options.expert_bias_update_rate = static_cast<float>(model.moe_router_bias_update_rate());
  if (model.has_moe_expert_capacity_factor())
    options.capacity_factor = model.moe_expert_capacity_factor();
  options.drop_policy = model.moe_token_drop_policy() == config::TokenDropPolicy::position
                            ? ops::DropPolicy::kPosition
                            : ops::DropPolicy::kProbability;
  return options;
}

ops::Activation ToActivation(config::Activation::Type activation) {
  switch (activation) {
    case config::Activation::gelu_erf:
      return ops::Activation::kGeluErf;
    case config::Activation::relu:
      return ops::Activation::kRelu;
    case config::Activation::silu:
      return ops::Activation::kSilu;
    case config::Activation::gelu_tanh:
      break;
  }
  return ops::Activation::kGeluTanh;
}

ModelKind ToModelKind(config::ModelType::Type type) {
  switch (type) {
    case config::ModelType::gpt:
      return ModelKind::kGpt;
    case config::ModelType::bert:
      return ModelKind::kBert;
    case config::ModelType::t5:
      return ModelKind::kT5;
  }
  return ModelKind::kGpt;
}

bool IsT5(const config::ModelConfig& model) { return model.model_type() == config::ModelType::t5; }

// Of T5 the decoder.
TransformerOptions ToTransformer(const config::PretrainConfig& config) {
  const config::ModelConfig& model = config.model();
  TransformerOptions options;
  options.num_layers = IsT5(model) ? model.decoder_num_layers() : model.num_layers();
  options.hidden_size = model.hidden_size();
  options.ffn_hidden_size = model.ffn_hidden_size();
  options.num_attention_heads = model.num_attention_heads();
  options.num_query_groups = model.num_query_groups();
  options.kv_channels = model.kv_channels();
  options.norm.kind = model.normalization() == config::Normalization::RMSNorm
                          ? ops::Norm::kRmsNorm
                          : ops::Norm::kLayerNorm;
  options.norm.epsilon = static_cast<float>(model.norm_epsilon());
  options.norm.zero_centered_gamma = model.apply_layernorm_1p();
  options.activation = ToActivation(model.activation_func());
  options.gated = model.swiglu() || model.gated_linear_unit();
  if (model.gated_linear_unit() && !model.swiglu()) options.gate = options.activation;
  options.linear_bias = !model.disable_bias_linear();
  options.qkv_bias = !model.disable_bias_linear() || model.add_qkv_bias();
  options.qk_norm = model.qk_layernorm();
  options.rotary = model.position_embedding_type() == config::PositionEmbedding::rope;
  options.rotary_options = {model.rotary_base(), model.rotary_percent(), model.rotary_interleaved(),
                            model.rotary_seq_len_interpolation_factor(),
                            model.use_rope_scaling() ? model.rope_scaling_factor() : 0};
  if (model.position_embedding_type() == config::PositionEmbedding::relative) {
    options.relative_positions = {model.relative_attention_num_buckets(),
                                  model.relative_attention_max_distance()};
  }
  if (IsT5(model)) options.softmax_scale = static_cast<float>(model.softmax_scale());
  options.causal = model.model_type() != config::ModelType::bert;
  options.name = options.causal ? "decoder" : "encoder";  // Megatron's names
  options.post_norm = model.post_norm();
  options.hidden_dropout = static_cast<float>(model.hidden_dropout());
  options.attention_dropout = static_cast<float>(model.attention_dropout());
  options.init_std = static_cast<float>(model.init_method_std());
  options.output_init_std = static_cast<float>(
      model.use_scaled_init_method()
          ? model.init_method_std() / std::sqrt(2.0 * static_cast<double>(model.num_layers()))
          : model.init_method_std());
  options.dtype = ModelDType(config.precision());
  options.recompute = ToRecompute(config.recompute());
  options.float8 = ToFloat8(config.precision());
  options.moe = ToMoe(model);
  return options;
}

ModelOptions ToModelOptions(const config::PretrainConfig& config, int64_t vocab_size) {
  const config::ModelConfig& model = config.model();
  const int64_t multiple = model.make_vocab_size_divisible_by();
  ModelOptions options;
  options.kind = ToModelKind(model.model_type());
  options.transformer = ToTransformer(config);
  options.vocab_size = vocab_size;
  options.padded_vocab_size = (vocab_size + multiple - 1) / multiple * multiple;
  options.learned_positions =
      model.position_embedding_type() == config::PositionEmbedding::learned_absolute;
  options.max_positions = model.max_position_embeddings();
  options.tied_embeddings = !model.untie_embeddings_and_output_weights();
  options.embedding_init_std = static_cast<float>(model.embedding_init_method_std());
  if (model.model_type() == config::ModelType::bert) {
    options.num_token_types = model.num_tokentypes();
    options.sentence_order_head = model.bert_binary_head();
    if (model.openai_gelu()) options.masked_lm_activation = ops::Activation::kGeluTanh;
  }
  if (IsT5(model)) {
    options.num_encoder_layers = model.encoder_num_layers();
    options.output_bias = model.add_output_bias();
    options.output_scale = static_cast<float>(model.output_scale());
  }
  options.layer_recompute = ToLayerRecompute(config.recompute());
  options.logits_chunk = config.train().logits_chunk_tokens();
  options.dropout_seed = static_cast<uint64_t>(config.train().seed());
  return options;
}

ContextParallel ToContextParallel(config::ContextParallelComm::Type type) {
  switch (type) {
    case config::ContextParallelComm::a2a:
      return ContextParallel::kAllToAll;
    case config::ContextParallelComm::allgather:
      return ContextParallel::kGather;
    case config::ContextParallelComm::a2a_p2p:
      return ContextParallel::kHierarchical;
    default:
      return ContextParallel::kRing;
  }
}

ops::AttentionKernel ToAttentionKernel(const config::SystemConfig& config) {
  if (config.attention_backend() == config::AttentionBackend::flash)
    return ops::AttentionKernel::kHopper;
  if (config.attention_backend() != config::AttentionBackend::fused)
    return ops::AttentionKernel::kOwn;
  return config.deterministic_mode() ? ops::AttentionKernel::kCudnnDeterministic
                                     : ops::AttentionKernel::kCudnn;
}

ParallelSizes ToParallelSizes(const config::ParallelConfig& config) {
  ParallelSizes sizes;
  sizes.tensor = static_cast<int>(config.tensor_model_parallel_size());
  sizes.context = static_cast<int>(config.context_parallel_size());
  sizes.pipeline = static_cast<int>(config.pipeline_model_parallel_size());
  sizes.data = static_cast<int>(config.data_parallel_size());
  sizes.expert = static_cast<int>(config.expert_model_parallel_size());
  sizes.expert_tensor = static_cast<int>(config.expert_tensor_parallel_size());
  return sizes;
}

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

OptimizerOptions ToOptimizerOptions(const config::OptimizerConfig& config) {
  OptimizerOptions options;
  options.kind = config.optimizer() == config::Optimizer::sgd ? OptimizerOptions::kSgd
                                                              : OptimizerOptions::kAdamW;
  options.adam_beta1 = config.adam_beta1();
  options.adam_beta2 = config.adam_beta2();
  options.adam_epsilon = config.adam_eps();
  options.sgd_momentum = config.sgd_momentum();
  return options;
}

OptimizerParamSchedule ToSchedule(const config::PretrainConfig& config) {
  const config::OptimizerConfig& optimizer = config.optimizer();
  const int64_t batch = config.train().global_batch_size();
  OptimizerParamSchedule schedule;
  schedule.max_lr = optimizer.lr();
  schedule.min_lr = optimizer.min_lr();
  schedule.init_lr = optimizer.lr_warmup_init();
  schedule.lr_decay_steps = optimizer.lr_decay_iters() * batch;
  schedule.lr_warmup_steps =
      optimizer.has_lr_warmup_fraction()
          ? static_cast<int64_t>(optimizer.lr_warmup_fraction() *
                                 static_cast<double>(schedule.lr_decay_steps))
          : optimizer.lr_warmup_iters() * batch;
  switch (optimizer.lr_decay_style()) {
    case config::LrDecayStyle::constant:
      schedule.lr_decay_style = LrDecayStyle::kConstant;
      break;
    case config::LrDecayStyle::linear:
      schedule.lr_decay_style = LrDecayStyle::kLinear;
      break;
    case config::LrDecayStyle::cosine:
      schedule.lr_decay_style = LrDecayStyle::kCosine;
      break;
    case config::LrDecayStyle::inverse_square_root:
      schedule.lr_decay_style = LrDecayStyle::kInverseSquareRoot;
      break;
    case config::LrDecayStyle::WSD:
      schedule.lr_decay_style = LrDecayStyle::kWsd;
      break;
  }
  switch (optimizer.lr_wsd_decay_style()) {
    case config::LrWsdDecayStyle::exponential:
      schedule.wsd_decay_style = WsdDecayStyle::kExponential;
      break;
    case config::LrWsdDecayStyle::linear:
      schedule.wsd_decay_style = WsdDecayStyle::kLinear;
      break;
    case config::LrWsdDecayStyle::cosine:
      schedule.wsd_decay_style = WsdDecayStyle::kCosine;
      break;
    case config::LrWsdDecayStyle::minus_sqrt:
      schedule.wsd_decay_style = WsdDecayStyle::kMinusSqrt;
      break;
  }
  schedule.wsd_decay_steps = optimizer.lr_wsd_decay_iters() * batch;
  schedule.start_weight_decay = optimizer.start_weight_decay();
  schedule.end_weight_decay = optimizer.end_weight_decay();
  schedule.weight_decay_steps = config.train().train_iters() * batch;
  switch (optimizer.weight_decay_incr_style()) {
    case config::WeightDecayIncrStyle::constant:
      schedule.weight_decay_style = WeightDecayStyle::kConstant;
      break;
    case config::WeightDecayIncrStyle::linear:
      schedule.weight_decay_style = WeightDecayStyle::kLinear;
      break;
    case config::WeightDecayIncrStyle::cosine:
      schedule.weight_decay_style = WeightDecayStyle::kCosine;
      break;
  }
  return schedule;
}

BatchSizeRampOptions ToBatchSizeRamp(const config::PretrainConfig& config) {
  const config::TrainConfig& training = config.train();
  BatchSizeRampOptions options;
  options.global_batch_size = training.global_batch_size();
  options.granularity = training.micro_batch_size() * config.parallel().data_parallel_size();
  if (training.has_rampup_batch_size()) {
    options.start = training.rampup_batch_size().start();
    options.increment = training.rampup_batch_size().increment();
    options.samples = training.rampup_batch_size().samples();
  }
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
  options.model.transformer.sequence_parallel = config.parallel().sequence_parallel();
  options.model.transformer.context_parallel = ToContextParallel(config.parallel().cp_comm_type());
  if (config.parallel().cp_comm_type() == config::ContextParallelComm::a2a_p2p) {
    options.model.transformer.context_team_size =
        static_cast<int>(config.parallel().hierarchical_context_parallel_sizes(0));
  }
  options.model.transformer.attention_kernel = ToAttentionKernel(config.system());
  options.sharding = ToSharding(config.parallel());
  options.data_parallel.overlap_grad_reduce = config.parallel().overlap_grad_reduce();
  options.data_parallel.overlap_param_gather = config.parallel().overlap_param_gather();
  options.bucket_size = config.parallel().ddp_bucket_size();
  options.data_parallel.grad_reduce_in_bf16 = config.parallel().grad_reduce_in_bf16();
  if (config.has_generation()) options.max_generation_context = config.model().seq_length();
  if (config.has_generation() && IsT5(config.model())) {
    options.max_generation_context = config.model().decoder_seq_length();
    options.max_encoder_context = config.model().seq_length();
  }
  options.optimizer = ToOptimizerOptions(config.optimizer());
  options.schedule = ToSchedule(config);
  options.batch_size = ToBatchSizeRamp(config);
  options.packing.layout.micro_batch_size = training.micro_batch_size();
  options.packing.layout.data_parallel_size = config.parallel().data_parallel_size();
  options.packing.seq_length = config.model().seq_length();
  options.packing.max_micro_batches = training.global_batch_size() / options.batch_size.granularity;
  options.packing.per_token_loss = training.calculate_per_token_loss();
  options.packing.num_workers = config.data().num_workers();
  options.packing.classified = config.model().model_type() == config::ModelType::bert;
  if (IsT5(config.model())) {
    options.packing.seq_length = config.model().decoder_seq_length();
    options.packing.encoder_seq_length = config.model().seq_length();
  }
  if (config.parallel().sequence_parallel() &&
      config.model().model_type() != config::ModelType::gpt)
    options.packing.token_multiple = config.parallel().tensor_model_parallel_size();
  options.clip_grad = config.optimizer().clip_grad();
  options.cuda_graphs.enabled = config.system().cuda_graph_impl() == config::CudaGraphImpl::local;
  options.cuda_graphs.warmup_steps = config.system().cuda_graph_warmup_steps();
  options.log_params_norm = config.logging().log_params_norm();
  options.log_num_zeros_in_grad = config.logging().log_num_zeros_in_grad();
  return options;
}

DeviceType DeviceOf(const config::SystemConfig& config) {
  const bool cuda =
      config.has_device() ? config.device() == config::Device::cuda : CudaDeviceCount() > 0;
  return cuda ? DeviceType::kCuda : DeviceType::kCpu;
}

std::optional<FillInTheMiddleOptions> ToFillInTheMiddle(const config::PretrainConfig& config) {
  if (!config.data().has_fim_data()) return std::nullopt;
  const config::FimConfig& fim = config.data().fim_data();
  FillInTheMiddleOptions options;
  options.rate = fim.fim_rate();
  options.spm_rate = fim.fim_spm_rate();
  options.fragment_rate = fim.fim_fragment_rate();
  options.prefix_token = fim.fim_prefix_token();
  options.middle_token = fim.fim_middle_token();
  options.suffix_token = fim.fim_suffix_token();
  options.pad_token = fim.fim_pad_token();
  if (fim.has_fim_eod_token()) options.eod_token = fim.fim_eod_token();
  options.split_token = fim.fim_split_sample();
  options.no_prefix = fim.fim_no_prefix();
  options.seed = static_cast<uint32_t>(config.train().seed());
  return options;
}

DataOptions ToData(const config::PretrainConfig& config) {
  const config::DataConfig& data = config.data();
  const config::TrainConfig& training = config.train();
  DataOptions options;
  for (const std::string& part : data.data_path()) options.data_path.push_back(part);
  options.split = data.split();
  options.train_data_path.assign(data.train_data_path().begin(), data.train_data_path().end());
  options.valid_data_path.assign(data.valid_data_path().begin(), data.valid_data_path().end());
  options.test_data_path.assign(data.test_data_path().begin(), data.test_data_path().end());
  options.per_split_data_args_path = data.per_split_data_args_path();
  options.mmap_bin_files = data.mmap_bin_files();
  options.cache_path = data.data_cache_path();
  options.fill_in_the_middle = ToFillInTheMiddle(config);
  if (config.model().model_type() != config::ModelType::gpt) {
    options.sentences =
        SentenceDataOptions{data.mask_prob(), data.short_seq_prob(),
                            config.model().bert_binary_head(), config.model().decoder_seq_length()};
  }
  options.cyclic = data.dataloader_type() == config::DataloaderType::cyclic;
  options.data_sharding = data.data_sharding();
  options.micro_batch_size = training.micro_batch_size();
  options.data_parallel_size = config.parallel().data_parallel_size();
  options.mock = data.mock_data();
  options.stories = data.has_stories();
  options.stories_bytes = data.stories().num_bytes();
  options.stories_seed = static_cast<uint64_t>(data.stories().seed());
  options.seq_length = config.model().seq_length();
  options.seed = static_cast<uint32_t>(training.seed());
  options.reset_position_ids = data.reset_position_ids();
  options.reset_attention_mask = data.reset_attention_mask();
  options.eod_mask_loss = data.eod_mask_loss();
  options.run = {training.train_iters(), training.global_batch_size(),
                 training.eval_iters() > 0 ? training.eval_interval() : 0, training.eval_iters()};
  return options;
}

LoopOptions ToLoop(const config::PretrainConfig& config) {
  const config::TrainConfig& training = config.train();
  LoopOptions options;
  options.train_iters = training.train_iters();
  options.eval_interval = training.eval_iters() > 0 ? training.eval_interval() : 0;
  options.eval_iters = training.eval_iters();
  options.log_interval = training.log_interval();
  options.exit_interval = training.exit_interval();
  options.exit_duration_minutes = training.exit_duration_in_mins();
  options.log_throughput = config.logging().log_throughput();
  options.metrics_file = config.logging().metrics_file();
  options.pipeline_timeline_file = config.logging().pipeline_timeline_file();
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

CheckpointOptions ToCheckpoint(const config::CheckpointConfig& config) {
  CheckpointOptions options;
  options.save = config.save();
  options.load = config.load();
  options.save_interval = config.save_interval();
  options.keep_last = config.keep_last();
  options.async_save = config.async_save();
  options.finetune = config.finetune();
  options.no_load_optim = config.no_load_optim();
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
  return absl::StrCat("tensor ", sizes.tensor, " x ", context, "pipeline ", sizes.pipeline,
                      " x data ", sizes.data);
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

RanksOptions ToRanksOptions(const config::ParallelConfig& config) {
  RanksOptions options;
  options.processes = config.ranks_as() == config::RanksAs::processes;
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

RunOptions ToRunOptions(const config::PretrainConfig& config, int64_t vocab_size) {
  RunOptions options;
  options.trainer = ToTrainer(config, vocab_size);
  options.parallel = ToParallelSizes(config.parallel());
  options.precision = ToPrecision(config.precision());
  options.data = ToData(config);
  options.tokenizer = ToTokenizerOptions(config.data());
  options.loop = ToLoop(config);
  options.checkpoint = ToCheckpoint(config.checkpoint());
  options.generation = ToGeneration(config);
  options.seed = static_cast<uint64_t>(config.train().seed());
  options.device = DeviceOf(config.system());
  options.num_threads = config.system().num_threads() > 0
                            ? static_cast<int>(config.system().num_threads())
                            : AvailableCores();
  options.gemms = {config.system().gemm_plan_file(), config.system().time_gemm_kernels(),
                   config.system().fuse_bias_gradients()};
  options.ranks = ToRanksOptions(config.parallel());
  options.profile = ToProfile(config.logging());
  return options;
}

TrainerOptions RunOptions::TrainerOf(int stage, int data_rank) const {
  TrainerOptions options = trainer;
  if (device != DeviceType::kCuda) options.cuda_graphs.enabled = false;
  options.placement.stage = stage;
  options.packing.layout.data_parallel_rank = data_rank;
  return options;
}

absl::StatusOr<LossScaler> MakeLossScaler(const PrecisionOptions& options) {
  if (options.dynamic_loss_scale) return LossScaler::CreateDynamic(options.dynamic);
  return LossScaler::MakeConstant(options.constant_loss_scale);
}

std::string RunIdentity(const config::PretrainConfig& config, const std::string& data_fingerprint) {
  config::PretrainConfig identity;
  *identity.mutable_model() = config.model();
  *identity.mutable_data() = config.data();
  // The fingerprint says what is in the files, and how they are read changes nothing.
  config::DataConfig* const data = identity.mutable_data();
  data->clear_data_path();
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
    precision->set_fp8_wgrad(config.precision().fp8_wgrad());
    precision->set_first_last_layers_bf16(config.precision().first_last_layers_bf16());
    precision->set_num_layers_at_start_in_bf16(config.precision().num_layers_at_start_in_bf16());
    precision->set_num_layers_at_end_in_bf16(config.precision().num_layers_at_end_in_bf16());
  }
  identity.mutable_train()->set_seed(config.train().seed());
  return absl::StrCat(EffectiveConfigText(identity), "data fingerprint: ", data_fingerprint, "\n");
}

std::string RunId(const std::string& identity) {
  // FNV-1a, 64 bits: it tells runs apart, it protects nothing.
  uint64_t hash = 0xcbf29ce484222325u;
  for (unsigned char c : identity) hash = (hash ^ c) * 0x100000001b3u;
  return absl::StrFormat("%016x", hash);
}

}  // namespace megatron
