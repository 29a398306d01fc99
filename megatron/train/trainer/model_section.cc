#include "megatron/train/trainer/model_section.h"

#include <cmath>
#include <vector>

#include "megatron/base/round_up.h"
#include "megatron/layers/latent_scale.h"
#include "megatron/train/config/layer_pattern.h"
#include "megatron/train/config/router_balance.h"
#include "megatron/train/costs/layer_shape.h"
#include "megatron/train/costs/lora_modules.h"
#include "megatron/train/recipes/model_rules_of.h"
#include "megatron/train/recipes/recipes.h"

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

Float8Recipe ToRecipe(config::Fp8Recipe::Type recipe) {
  switch (recipe) {
    case config::Fp8Recipe::delayed:
      return Float8Recipe::kDelayed;
    case config::Fp8Recipe::blockwise:
      return Float8Recipe::kBlockwise;
    default:
      return Float8Recipe::kTensorwise;
  }
}

Float8Options ToFloat8(const config::PrecisionConfig& config) {
  Float8Options options;
  options.enabled = config.fp8_format() != config::Fp8Format::none;
  options.gradient =
      config.fp8_format() == config::Fp8Format::e4m3 ? Float8Format::kE4M3 : Float8Format::kE5M2;
  options.recipe = ToRecipe(config.fp8_recipe());
  options.weight_gradient = config.fp8_wgrad();
  options.power_of_two_scales = config.fp8_power_of_two_scales();
  options.history_options.length = config.fp8_amax_history_len();
  options.history_options.most_recent =
      config.fp8_amax_compute_algo() == config::Fp8AmaxComputeAlgo::most_recent;
  options.history_options.margin = static_cast<int>(config.fp8_margin());
  if (config.first_last_layers_bf16()) {
    options.first_layers_without = config.num_layers_at_start_in_bf16();
    options.last_layers_without = config.num_layers_at_end_in_bf16();
  }
  return options;
}

LoraOptions ToLora(const config::LoraConfig& config) {
  return {config.dim(), config.alpha(), LoraModules(config), static_cast<float>(config.dropout())};
}

RecomputeOptions ToRecompute(const config::RecomputeConfig& config) {
  RecomputeOptions options;
  options.mlp_chunk_tokens = config.mlp_chunk_tokens();
  options.attention_chunk_tokens = config.attention_chunk_tokens();
  if (config.recompute_granularity() != config::RecomputeGranularity::selective) return options;
  options.core_attention = Contains(config, config::RecomputeModule::core_attn);
  options.mlp = Contains(config, config::RecomputeModule::mlp);
  options.norm = Contains(config, config::RecomputeModule::layernorm);
  options.latent_heads = Contains(config, config::RecomputeModule::mla_up_proj);
  options.experts = Contains(config, config::RecomputeModule::moe);
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

BalanceUnit ToBalanceUnit(const RouterBalance& balance) {
  if (balance.coeff == 0) return BalanceUnit::kNone;
  switch (balance.type) {
    case config::RouterLoadBalancing::seq_aux_loss:
      return BalanceUnit::kSample;
    case config::RouterLoadBalancing::aux_loss:
      return BalanceUnit::kMicroBatch;
    case config::RouterLoadBalancing::global_aux_loss:
      return BalanceUnit::kStep;
    case config::RouterLoadBalancing::none:
    case config::RouterLoadBalancing::sinkhorn:
    case config::RouterLoadBalancing::quantile_balancing:
      break;
  }
  return BalanceUnit::kNone;
}

// Returns Megatron's router: with top-k 1, the sigmoid of the logit; else the softmax over all
// experts.
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
  options.shared_expert_gate = model.moe_shared_expert_gate();
  options.router.score = model.moe_router_score_function() == config::RouterScoreFunction::sigmoid
                             ? ops::RouterScore::kSigmoid
                             : ops::RouterScore::kSoftmax;
  options.router.topk = static_cast<int>(model.moe_router_topk());
  options.router.pre_softmax = model.moe_router_pre_softmax();
  options.router.scaling_factor = static_cast<float>(model.moe_router_topk_scaling_factor());
  if (model.has_moe_router_num_groups()) {
    options.router.num_groups = static_cast<int>(model.moe_router_num_groups());
    options.router.group_topk = static_cast<int>(model.moe_router_group_topk());
    options.router.group_score_topk = static_cast<int>(model.moe_router_group_score_topk());
  }
  options.sinkhorn = HasRouterBalance(model, config::RouterLoadBalancing::sinkhorn);
  if (options.sinkhorn) options.router = SinkhornRouter(options.router.topk);
  options.input_jitter_eps = static_cast<float>(model.moe_input_jitter_eps());
  options.pad_to_capacity = model.moe_pad_expert_input_to_capacity();
  const std::vector<RouterBalance> balances = RouterBalances(model);
  options.balance = ToBalanceUnit(balances.front());
  options.aux_loss_coeff = static_cast<float>(balances.front().coeff);
  for (size_t i = 1; i < balances.size(); ++i) {
    options.further_balances.push_back(
        {ToBalanceUnit(balances[i]), static_cast<float>(balances[i].coeff)});
  }
  options.z_loss_coeff = static_cast<float>(model.moe_z_loss_coeff());
  const bool quantiles = HasRouterBalance(model, config::RouterLoadBalancing::quantile_balancing);
  options.expert_bias = model.moe_router_enable_expert_bias() || quantiles;
  options.quantile_bins = quantiles ? model.moe_router_qb_num_bins() : 0;
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
    case config::Activation::squared_relu:
      return ops::Activation::kSquaredRelu;
    case config::Activation::quick_gelu:
      return ops::Activation::kQuickGelu;
    case config::Activation::gelu_tanh:
      break;
  }
  return ops::Activation::kGeluTanh;
}

AttentionSink ToSink(config::SoftmaxType::Type type) {
  switch (type) {
    case config::SoftmaxType::off_by_one:
      return AttentionSink::kZero;
    case config::SoftmaxType::learnable:
      return AttentionSink::kLearned;
    case config::SoftmaxType::vanilla:
      break;
  }
  return AttentionSink::kNone;
}

LongRopeOptions ToLongRope(const config::ModelConfig& model) {
  LongRopeOptions options;
  if (model.longrope_long_factors_size() == 0) return options;
  options.long_factors.assign(model.longrope_long_factors().begin(),
                              model.longrope_long_factors().end());
  options.short_factors.assign(model.longrope_short_factors().begin(),
                               model.longrope_short_factors().end());
  const int64_t original = model.longrope_original_max_position_embeddings();
  options.original_context = static_cast<double>(original);
  options.is_long = model.seq_length() > original;
  options.magnitude = model.longrope_attention_factor();
  return options;
}

// Latent attention turns neighbouring channels, as in DeepSeek's models.
RotaryOptions ToRotary(const config::ModelConfig& model) {
  RotaryOptions options = {model.rotary_base(), model.rotary_percent(),
                           model.rotary_interleaved() || model.multi_latent_attention(),
                           model.rotary_seq_len_interpolation_factor(),
                           model.use_rope_scaling() ? model.rope_scaling_factor() : 0};
  options.longrope = ToLongRope(model);
  options.local_base = model.rotary_base_local();
  if (model.position_embedding_type() != config::PositionEmbedding::yarn) return options;
  options.yarn.factor = model.yarn_rotary_scaling_factor();
  options.yarn.original_context =
      static_cast<double>(model.yarn_original_max_position_embeddings());
  options.yarn.beta_fast = model.yarn_beta_fast();
  options.yarn.beta_slow = model.yarn_beta_slow();
  options.yarn.round_range = model.yarn_correction_range_round_to_int();
  options.yarn.mscale = model.yarn_mscale();
  options.yarn.mscale_all_dim = model.yarn_mscale_all_dim();
  return options;
}

// The factor of scores under muP.
double MupSoftmaxScale(const config::ModelConfig& model) {
  const double base = model.has_mup_base_head_dim() ? std::sqrt(model.mup_base_head_dim()) : 1;
  return base / std::pow(static_cast<double>(model.kv_channels()), model.mup_attn_scale_power());
}

// Sets latent attention. YaRN also makes its scores larger, unless their scale is written.
void SetLatentAttention(const config::ModelConfig& model, TransformerOptions* options) {
  if (!model.multi_latent_attention()) return;
  options->latent = {model.kv_lora_rank(), model.q_lora_rank(), model.qk_pos_emb_head_dim()};
  if (model.has_softmax_scale()) return;
  const double usual = 1 / std::sqrt(static_cast<double>(model.kv_channels()));
  options->softmax_scale = static_cast<float>(
      LatentSoftmaxScale(*options) * (model.use_mup() ? MupSoftmaxScale(model) / usual : 1));
}

// Sets the layers of a hybrid model, which have one branch each.
void SetHybridLayers(const config::ModelConfig& model, TransformerOptions* options) {
  if (!model.has_hybrid_layer_pattern()) return;
  for (const char layer : model.hybrid_layer_pattern()) {
    options->hybrid_layers.push_back(layer == 'M'   ? HybridLayer::kMamba
                                     : layer == 'G' ? HybridLayer::kDelta
                                     : layer == '*' ? HybridLayer::kAttention
                                                    : HybridLayer::kMlp);
  }
  options->mamba = {model.mamba_state_dim(), model.mamba_head_dim(), model.mamba_num_groups(),
                    model.mamba_num_heads(), model.mamba_norm_all_groups()};
  options->delta = {model.linear_conv_kernel_dim(), model.linear_key_head_dim(),
                    model.linear_value_head_dim(), model.linear_num_key_heads(),
                    model.linear_num_value_heads()};
}

// The number of projections of all layers that write into the residual stream.
double ResidualBranches(const config::ModelConfig& model) {
  return static_cast<double>(model.num_layers()) * (model.has_hybrid_layer_pattern() ? 1 : 2);
}

// Converts the options that all kinds of models share.
TransformerOptions ToTransformer(const config::PretrainConfig& config) {
  const config::ModelConfig& model = config.model();
  TransformerOptions options;
  options.num_layers = model.num_layers();
  options.hidden_size = model.hidden_size();
  options.ffn_hidden_size = model.ffn_hidden_size();
  options.num_attention_heads = model.num_attention_heads();
  options.num_query_groups = model.num_query_groups();
  options.kv_channels = model.kv_channels();
  options.value_channels = ValueHeadDim(model);
  options.norm.kind = model.normalization() == config::Normalization::RMSNorm
                          ? ops::Norm::kRmsNorm
                          : ops::Norm::kLayerNorm;
  options.norm.epsilon = static_cast<float>(model.norm_epsilon());
  options.norm.zero_centered_gamma = model.apply_layernorm_1p();
  options.norm.bias = !model.disable_bias_norm();
  options.activation = ToActivation(model.activation_func());
  options.gated = model.swiglu() || model.gated_linear_unit();
  if (model.gated_linear_unit() && !model.swiglu()) options.gate = options.activation;
  if (model.has_activation_func_clamp_value())
    options.gate_limit = static_cast<float>(model.activation_func_clamp_value());
  options.gate_offset = static_cast<float>(model.glu_linear_offset());
  options.linear_bias = !model.disable_bias_linear();
  options.qkv_bias = !model.disable_bias_linear() || model.add_qkv_bias();
  options.mlp_bias = model.add_mlp_bias();
  options.qk_norm = model.qk_layernorm();
  options.qk_norm_all_heads = model.qk_layernorm_all_heads();
  options.qk_norm_each_head = model.qk_layernorm_each_head();
  options.output_gate = model.attention_output_gate();
  options.rotary = model.position_embedding_type() == config::PositionEmbedding::rope ||
                   model.position_embedding_type() == config::PositionEmbedding::yarn;
  options.rotary_options = ToRotary(model);
  options.softmax_scale = static_cast<float>(model.softmax_scale());
  if (model.use_mup() && !model.has_softmax_scale())
    options.softmax_scale = static_cast<float>(MupSoftmaxScale(model));
  options.score_softcap = static_cast<float>(model.attn_logit_softcapping());
  SetLatentAttention(model, &options);
  if (model.has_no_rope_freq()) options.rotary_layers = *RotaryLayers(model);
  options.window_size = model.window_size();
  if (model.has_window_attn_skip_freq()) options.window_layers = *WindowLayers(model);
  options.sink = ToSink(model.softmax_type());
  if (model.position_embedding_type() == config::PositionEmbedding::relative) {
    options.relative_positions = {model.relative_attention_num_buckets(),
                                  model.relative_attention_max_distance()};
  }
  options.post_norm = model.post_norm();
  options.sandwich_norm = model.sandwich_norm();
  options.reordered_norm = model.reordered_norm();
  options.parallel_residual = model.parallel_residual();
  options.parallel_shared_norm = model.parallel_residual_shared_norm();
  options.residual_multiplier = static_cast<float>(model.residual_multiplier());
  options.hidden_dropout = static_cast<float>(model.hidden_dropout());
  options.attention_dropout = static_cast<float>(model.attention_dropout());
  options.init_std = static_cast<float>(model.init_method_std());
  options.output_init_std = static_cast<float>(
      model.use_scaled_init_method() ? model.init_method_std() / std::sqrt(ResidualBranches(model))
                                     : model.init_method_std());
  options.dtype = ModelDType(config.precision());
  options.recompute = ToRecompute(config.recompute());
  options.float8 = ToFloat8(config.precision());
  options.moe = ToMoe(model);
  SetHybridLayers(model, &options);
  if (model.has_lora()) options.lora = ToLora(model.lora());
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

// Sets the model's parallelism.
void SetParallelism(const config::PretrainConfig& config, TransformerOptions* options) {
  const config::ParallelConfig& parallel = config.parallel();
  options->sequence_parallel = parallel.sequence_parallel();
  options->tp_comm_overlap = parallel.tp_comm_overlap();
  options->context_parallel = ToContextParallel(parallel.cp_comm_type());
  if (parallel.cp_comm_type() == config::ContextParallelComm::a2a_p2p) {
    options->context_team_size = static_cast<int>(parallel.hierarchical_context_parallel_sizes(0));
  }
}

OffloadModule ToOffloadModule(int module) {
  switch (module) {
    case config::OffloadModule::attn_norm:
      return OffloadModule::kAttentionNorm;
    case config::OffloadModule::qkv_linear:
      return OffloadModule::kQkvLinear;
    case config::OffloadModule::core_attn:
      return OffloadModule::kCoreAttention;
    case config::OffloadModule::attn_proj:
      return OffloadModule::kAttentionProj;
    case config::OffloadModule::mlp_norm:
      return OffloadModule::kMlpNorm;
    case config::OffloadModule::mlp:
      return OffloadModule::kMlp;
    case config::OffloadModule::expert_fc1:
      return OffloadModule::kExpertFc1;
    default:
      return OffloadModule::kMoeActivation;
  }
}

}  // namespace

ModelOptions ToModelOptions(const config::PretrainConfig& config, int64_t vocab_size) {
  const config::ModelConfig& model = config.model();
  ModelOptions options;
  options.kind = ModelRulesOf(model).kind();
  options.transformer = ToTransformer(config);
  SetParallelism(config, &options.transformer);
  options.vocab_size = vocab_size;
  options.padded_vocab_size = RoundUp(vocab_size, model.make_vocab_size_divisible_by());
  options.learned_positions =
      model.position_embedding_type() == config::PositionEmbedding::learned_absolute;
  options.max_positions = model.max_position_embeddings();
  options.tied_embeddings = !model.untie_embeddings_and_output_weights();
  options.embedding_init_std = static_cast<float>(model.embedding_init_method_std());
  options.embedding_scale = static_cast<float>(model.embedding_scale());
  options.output_scale = static_cast<float>(model.output_scale());
  if (model.use_mup()) {
    options.mup_width_mult = MupWidthMult(model);
    options.embedding_output_scale = static_cast<float>(model.mup_embedding_mult());
    options.output_scale = static_cast<float>(model.mup_output_mult());
  }
  options.logit_softcap = static_cast<float>(model.final_logit_softcapping());
  options.xavier_uniform = model.init_method_xavier_uniform();
  options.xavier_embeddings = options.xavier_uniform && !model.has_embedding_init_method_std();
  options.layer_recompute = ToLayerRecompute(config.recompute());
  for (const int module : config.recompute().offload_modules())
    options.offload_modules.Add(ToOffloadModule(module));
  // All layers are offloaded until their number is chosen (train/planning/choose_offload.h).
  options.num_offloaded_layers = config.recompute().cpu_offloading_auto()
                                     ? model.num_layers()
                                     : config.recompute().cpu_offloading_num_layers();
  options.attention_on_host = config.recompute().attention_chunks_on_host();
  options.logits_chunk = config.train().logits_chunk_tokens();
  options.mtp_num_layers = model.mtp_num_layers();
  options.mtp_loss_scaling_factor = static_cast<float>(model.mtp_loss_scaling_factor());
  options.dropout_seed = static_cast<uint64_t>(config.train().seed());
  RecipeOf(options.kind).SetModelOptions(model, &options);
  return options;
}

}  // namespace megatron
