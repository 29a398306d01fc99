// Tests that each field of the configuration, changed from its default, changes the options that
// the program runs on, or is refused.

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "google/protobuf/descriptor.h"
#include "gtest/gtest.h"
#include "megatron/train/config/config_paths.h"
#include "megatron/train/config/config_rules.h"
#include "megatron/train/configs/config_loader.h"
#include "megatron/train/trainer/run_options.h"

namespace megatron {
namespace {

using ::google::protobuf::FieldDescriptor;

constexpr int64_t kVocabSize = 257;

constexpr char kBase[] =
    "model { num_layers: 4 hidden_size: 64 num_attention_heads: 4 seq_length: 32 }\n"
    "optimizer { lr: 0.9 lr_warmup_iters: 2 }\n"
    "train { micro_batch_size: 2 global_batch_size: 8 train_iters: 16 }\n"
    "data { stories {} }\n";

// Other settings that a setting needs to be accepted, besides the conditions of its field.
const std::map<std::string, std::vector<std::string>>& Needs() {
  static const auto* const needs = new std::map<std::string, std::vector<std::string>>{
      {"data.data_path=4", {"data.stories="}},
      {"data.train_data_path=4", {"data.stories=", "data.valid_data_path=b"}},
      {"data.valid_data_path=4", {"data.train_data_path=b", "data.stories="}},
      {"gradient_compression.type=int8", {"parallel.data_parallel_size=2"}},
      {"gradient_compression.type=topk", {"parallel.data_parallel_size=2"}},
      {"gradient_compression.type=powersgd", {"parallel.data_parallel_size=2"}},
      {"gradient_compression.type=threshold",
       {"parallel.data_parallel_size=2", "gradient_compression.threshold=0.25"}},
      {"optimizer.optimizer=onebit_adam", {"optimizer.freeze_step=4"}},
      {"train.train_samples=128", {"train.train_iters=", "optimizer.lr_warmup_iters=0"}},
      {"optimizer.optimizer=onebit_lamb", {"optimizer.freeze_step=4"}},
      {"model.model_type=t5", {"model.decoder_seq_length=16"}},
      {"diloco.server_address=here:4", {"diloco.secret_file=s"}},
      {"elasticity.enabled=true", {"elasticity.ignore_non_elastic_batch_info=true"}},
      {"data.curriculum_learning.schedule_type=fixed_root",
       {"data.curriculum_learning.min_difficulty=8",
        "data.curriculum_learning.total_curriculum_step=10"}},
      {"data.curriculum_learning.schedule_type=fixed_discrete",
       {"data.curriculum_learning.difficulty=[4, 8, 32]",
        "data.curriculum_learning.max_step=[2, 3]"}},
      {"model.num_experts=4", {"model.disable_bias_linear=true"}},
      // The number of classes is that of the task.
      {"model.num_classes=4",
       {"data.stories=", "data.data_path=b", "data.task=RACE", "model.num_classes=1"}},
      {"model.moe_router_enable_expert_bias=true", {"model.moe_router_score_function=sigmoid"}},
      {"model.moe_router_num_groups=4", {"model.moe_router_group_topk=2"}},
      {"model.moe_router_load_balancing_type=quantile_balancing",
       {"model.moe_router_score_function=sigmoid"}},
      {"model.position_embedding_type=relative",
       {"model.model_type=t5", "model.decoder_seq_length=16"}},
      {"model.mtp_num_layers=4", {"model.position_embedding_type=rope"}},
      {"model.hybrid_layer_pattern=MG*-",
       {"model.mamba_num_groups=2", "model.linear_num_key_heads=2",
        "model.linear_num_value_heads=2"}},
      {"model.longrope_long_factors=[4, 4, 4, 4, 4, 4, 4, 4]",
       {"model.longrope_short_factors=[2, 2, 2, 2, 2, 2, 2, 2]"}},
      {"model.multi_latent_attention=true",
       {"model.position_embedding_type=rope", "model.qk_pos_emb_head_dim=4"}},
      {"optimizer.lr_decay_style=WSD", {"optimizer.lr_wsd_decay_iters=4"}},
      {"parallel.cp_comm_type=a2a_p2p", {"parallel.hierarchical_context_parallel_sizes=[2, 1]"}},
      {"parallel.expert_model_parallel_size=2", {"parallel.data_parallel_size=2"}},
      {"parallel.hierarchical_collectives_ranks_per_host=2", {"parallel.data_parallel_size=4"}},
      {"parallel.tensor_parallel_mode=\"2.5d\"",
       {"parallel.tensor_model_parallel_size=8", "parallel.tensor_parallel_depth=2",
        "train.micro_batch_size=4"}},
      {"precision.fp8_format=e4m3", {"precision.bf16=true"}},
  };
  return *needs;
}

const FieldDescriptor& FieldAt(const std::string& path) {
  return *Resolve(config::PretrainConfig::default_instance(), path).field;
}

// Returns a value for which the condition holds; empty if it holds by default.
std::string ValueFor(const Condition& condition) {
  if (condition.path == "diloco.server_address") return "here:4";
  if (condition.path == "train.eval_tasks") return "piqa=a";
  if (condition.path == "model.hybrid_layer_pattern") return "MG*-";
  if (condition.path == "model.longrope_long_factors") return "[4, 4, 4, 4, 4, 4, 4, 4]";
  if (condition.path == "train.train_samples")
    return condition.kind == Condition::Kind::kPresent ? "128" : "";
  const FieldRef empty = Resolve(config::PretrainConfig::default_instance(), condition.path);
  const std::string now = empty.field->has_default_value() ? ValueText(empty) : "";
  const bool is_bool = empty.field->cpp_type() == FieldDescriptor::CPPTYPE_BOOL;
  switch (condition.kind) {
    case Condition::Kind::kPresent:
      return is_bool ? "true" : "4";
    case Condition::Kind::kEqual:
      return now == condition.value ? "" : condition.value;
    case Condition::Kind::kNotEqual:
      return now == condition.value ? empty.field->enum_type()->value(1)->name() : "";
    case Condition::Kind::kAbove:
      return !now.empty() && std::stod(now) > std::stod(condition.value) ? "" : "2";
    case Condition::Kind::kAbsent:
      break;
  }
  return "";
}

// Returns settings for which the conditions of effect of the field at `path` hold.
std::vector<std::string> SettingsFor(const std::string& path) {
  std::vector<std::string> settings;
  for (const std::vector<Condition>& alternatives : ConditionsOf(FieldAt(path))) {
    const std::string value = ValueFor(alternatives.front());
    if (value.empty()) continue;
    const std::string& other = alternatives.front().path;
    std::vector<std::string> more;
    if (other != path) more = SettingsFor(other);
    more.push_back(absl::StrCat(other, "=", value));
    const auto needs = Needs().find(more.back());
    if (needs != Needs().end()) more.insert(more.end(), needs->second.begin(), needs->second.end());
    for (const std::string& setting : more) {
      if (std::find(settings.begin(), settings.end(), setting) == settings.end())
        settings.push_back(setting);
    }
  }
  return settings;
}

// Settings under which fields have an effect that other settings refuse: one for the conditions of
// each field, and those that the schema does not state.
std::set<std::vector<std::string>> Contexts() {
  std::set<std::vector<std::string>> contexts = {
      {"model.group_query_attention=true", "model.num_query_groups=2"},
      {"optimizer.lr_warmup_iters=0"},
      {"optimizer.weight_decay_incr_style=linear", "optimizer.start_weight_decay=0.1",
       "optimizer.end_weight_decay=0.2"},
      {"train.rampup_batch_size={start: 4 increment: 2 samples: 64}"},
      {"train.train_samples=128", "train.train_iters=", "optimizer.lr_warmup_iters=0",
       "optimizer.lr_decay_style=WSD", "optimizer.lr_wsd_decay_samples=16"},
      {"data.fim_data={}"},
      {"model.lora={dim: 8}"},
      {"data.random_ltd={min_value: 8 require_steps: 10}"},
      {"data.stories=", "data.mock_data=true", "data.vocab_size=90",
       "data.tokenizer_type=NullTokenizer"},
      {"data.tokenizer_type=GPT2BPETokenizer", "data.vocab_file=a", "data.merge_file=b"},
      {"data.tokenizer_type=SentencePieceTokenizer", "data.tokenizer_model=a"},
      {"data.tokenizer_type=TikTokenizer", "data.tokenizer_model=a"},
      {"checkpoint.save=here", "checkpoint.load=there"},
      {"checkpoint.save=here", "checkpoint.save_interval=2"},
      {"parallel.data_parallel_size=2", "parallel.use_distributed_optimizer=true",
       "precision.bf16=true"},
      {"parallel.data_parallel_size=4", "parallel.use_distributed_optimizer=true",
       "parallel.data_parallel_sharding_strategy=optim_grads_params"},
      {"parallel.pipeline_model_parallel_size=2",
       "parallel.num_layers_per_virtual_pipeline_stage=1"},
      {"model.model_type=t5", "model.decoder_seq_length=16", "model.swiglu=true",
       "model.position_embedding_type=relative", "parallel.pipeline_model_parallel_size=4"},
      {"generation={}"},
      {"model.disable_bias_linear=true", "model.num_experts=4", "model.moe_aux_loss_coeff=0.25",
       "model.moe_expert_capacity_factor=2", "parallel.data_parallel_size=2",
       "model.moe_shared_expert_intermediate_size=8"},
      {"model.disable_bias_linear=true", "model.num_experts=16", "model.moe_router_topk=4",
       "model.moe_router_score_function=sigmoid", "model.moe_router_enable_expert_bias=true",
       "model.moe_router_num_groups=4", "model.moe_router_group_topk=2"},
  };
  for (const std::string& path : AllPaths(*config::PretrainConfig::descriptor())) {
    // Its settings would be those of lengths in iterations; the ones above have it in samples.
    if (path != "optimizer.lr_wsd_decay_samples") contexts.insert(SettingsFor(path));
  }
  return contexts;
}

// Settings that have to change along with a field, and a value if none of the usual ones would do.
struct Help {
  std::string value;
  std::vector<std::string> also;
};

const std::map<std::string, Help>& Helps() {
  static const auto* const helps = new std::map<std::string, Help>{
      // No value means seq_aux_loss.
      {"model.moe_router_load_balancing_type", {"aux_loss", {}}},
      {"data.mock_data", {"true", {"data.stories="}}},
      {"data.data_path", {"b", {"data.stories="}}},
      {"data.data_args_path", {"c", {"data.stories="}}},
      {"data.train_data_path", {"c", {"data.stories=", "data.valid_data_path=b"}}},
      {"data.per_split_data_args_path", {"c", {"data.stories="}}},
      {"data.split", {"9,1", {}}},
      {"data.curriculum_learning.min_difficulty", {"16", {}}},
      {"data.random_ltd.min_value", {"16", {}}},
      {"train.train_samples", {"64", {"train.train_iters=", "optimizer.lr_warmup_iters=0"}}},
      {"train.eval_tasks", {"piqa=b", {}}},
      {"train.overlapping_eval", {"16", {"train.eval_tasks=wikitext103=a"}}},
      {"model.num_classes",
       {"3", {"model.model_type=bert", "data.stories=", "data.data_path=b", "data.task=MNLI"}}},
      {"model.num_choices",
       {"4", {"model.model_type=bert", "data.stories=", "data.data_path=b", "data.task=RACE"}}},
      {"data.loss_weights", {"[2]", {"data.stories=", "data.data_path=b"}}},
      {"train.eval_tasks_interval", {"2000", {}}},
      {"train.iterations_to_skip", {"[3]", {}}},
      {"train.phase_transition_iterations", {"[3]", {"checkpoint.save=here"}}},
      {"train.step_batch_size_schedule", {"0:4 1K:8", {}}},
      {"data.random_ltd.max_value", {"16", {}}},
      {"data.curriculum_learning.max_difficulty", {"16", {}}},
      {"data.curriculum_learning.difficulty", {"[4, 16, 32]", {}}},
      {"data.curriculum_learning.max_step", {"[2, 4]", {}}},
      {"data.tokenizer_type",
       {"NullTokenizer", {"data.stories=", "data.mock_data=true", "data.vocab_size=90"}}},
      {"data.vocab_file", {"c", {"data.tokenizer_type=GPT2BPETokenizer", "data.merge_file=b"}}},
      {"data.merge_file", {"c", {"data.tokenizer_type=GPT2BPETokenizer", "data.vocab_file=a"}}},
      {"data.tokenizer_model", {"c", {"data.tokenizer_type=HuggingFaceTokenizer"}}},
      {"model.model_type", {"t5", {"model.decoder_seq_length=16"}}},
      {"model.position_embedding_type",
       {"relative", {"model.model_type=t5", "model.decoder_seq_length=16"}}},
      {"model.encoder_num_layers",
       {"2", {"model.num_layers=2", "model.model_type=t5", "model.decoder_seq_length=16"}}},
      {"model.encoder_seq_length",
       {"24", {"model.seq_length=24", "model.model_type=t5", "model.decoder_seq_length=16"}}},
      {"model.multi_latent_attention",
       {"true", {"model.position_embedding_type=rope", "model.qk_pos_emb_head_dim=4"}}},
      {"model.mtp_num_layers", {"2", {"model.position_embedding_type=rope"}}},
      {"model.mtp_loss_scaling_factor",
       {"0.5", {"model.mtp_num_layers=1", "model.position_embedding_type=rope"}}},
      {"model.hybrid_layer_pattern", {"*-*M", {"model.mamba_num_groups=2"}}},
      {"model.num_experts", {"4", {"model.disable_bias_linear=true"}}},
      {"model.moe_layer_freq", {"[0]+[1]*3", {}}},
      {"model.lora.target_modules", {"[\"linear_qkv\"]", {}}},
      {"model.longrope_long_factors",
       {"[8, 8, 8, 8, 8, 8, 8, 8]", {"model.longrope_short_factors=[2, 2, 2, 2, 2, 2, 2, 2]"}}},
      {"model.longrope_short_factors",
       {"[3, 3, 3, 3, 3, 3, 3, 3]", {"model.longrope_long_factors=[4, 4, 4, 4, 4, 4, 4, 4]"}}},
      {"model.window_attn_skip_freq", {"[0]+[1]*3", {}}},
      {"model.no_rope_freq", {"[0]+[1]*3", {}}},
      {"model.group_query_attention", {"true", {"model.num_query_groups=2"}}},
      {"optimizer.weight_decay_incr_style",
       {"cosine", {"optimizer.start_weight_decay=0.1", "optimizer.end_weight_decay=0.2"}}},
      {"optimizer.lr_decay_style", {"WSD", {"optimizer.lr_wsd_decay_iters=4"}}},
      {"elasticity.enabled", {"true", {"elasticity.ignore_non_elastic_batch_info=true"}}},
      {"elasticity.ignore_non_elastic_batch_info", {"true", {"elasticity.enabled=true"}}},
      // These change which batch is taken where ranks are few, and refuse others.
      {"elasticity.min_gpus",
       {"2", {"parallel.data_parallel_size=2", "elasticity.max_train_batch_size=12"}}},
      {"elasticity.max_gpus",
       {"2", {"elasticity.max_train_batch_size=7", "elasticity.micro_batch_sizes=[2, 3]"}}},
      {"elasticity.prefer_larger_batch",
       {"false",
        {"elasticity.max_train_batch_size=7", "elasticity.micro_batch_sizes=[2, 3]",
         "elasticity.max_gpus=2"}}},
      {"elasticity.num_gpus_per_node", {"2", {"parallel.data_parallel_size=2"}}},
      // One island shares samples with nobody.
      {"diloco.num_islands", {"2", {}}},
      {"diloco.server_address", {"there:5", {"diloco.secret_file=s"}}},
      // Less allows no round.
      {"federated.max_epsilon", {"50", {}}},
      {"logging.profile_ranks", {"1", {"parallel.data_parallel_size=2"}}},
      {"logging.prometheus_textfile", {"b.prom", {}}},
      {"system.num_threads", {"77", {}}},
      {"system.attention_backend", {"fused", {"precision.bf16=true", "model.attention_dropout=0"}}},
      // It is true by itself with one rank.
      {"system.time_gemm_kernels", {"true", {"parallel.data_parallel_size=2"}}},
      {"parallel.pipeline_schedule", {"zb_h1", {}}},
      {"parallel.pipeline_pass_costs", {"[1, 2.1, 0.7]", {}}},
      {"parallel.rank_order", {"tp-cp-ep-pp-dp", {}}},
      {"parallel.tensor_parallel_mode",
       {"2d", {"parallel.tensor_model_parallel_size=4", "train.micro_batch_size=2"}}},
      {"parallel.tensor_parallel_depth",
       {"2",
        {"parallel.tensor_parallel_mode=2.5d", "parallel.tensor_model_parallel_size=8",
         "train.micro_batch_size=4"}}},
      {"parallel.hierarchical_collectives_ranks_per_host",
       {"2", {"parallel.data_parallel_size=4"}}},
      {"parallel.moe_deduplicated_dispatch",
       {"true",
        {"model.disable_bias_linear=true", "model.num_experts=4", "parallel.data_parallel_size=4",
         "parallel.expert_model_parallel_size=4",
         "parallel.hierarchical_collectives_ranks_per_host=2"}}},
      {"parallel.hierarchical_context_parallel_sizes",
       {"[2, 4]", {"parallel.context_parallel_size=8", "parallel.cp_comm_type=a2a_p2p"}}},
      {"parallel.pipeline_model_parallel_layout", {"Et|tttL", {}}},
      {"parallel.account_for_embedding_in_pipeline_split", {"true", {"model.num_layers=5"}}},
      {"parallel.account_for_loss_in_pipeline_split", {"true", {"model.num_layers=5"}}},
  };
  return *helps;
}

// Fields that this version never reads, and never accepts for a run.
bool IsOnlyRefused(const std::string& path) { return path == "system.device"; }

template <typename T>
std::string AsText(const T& value) {
  if constexpr (std::is_enum_v<T>) {
    return absl::StrCat(static_cast<int>(value));
  } else {
    return absl::StrCat(value);
  }
}

template <typename... Values>
std::string Line(const Values&... values) {
  return absl::StrCat(absl::StrJoin(std::vector<std::string>{AsText(values)...}, " "), "\n");
}

std::string Describe(const MoeOptions& o) {
  return Line(o.num_experts, absl::StrJoin(o.layers, ""), o.ffn_hidden_size,
              o.shared_ffn_hidden_size, o.shared_expert_gate, o.router.score, o.router.topk,
              o.router.pre_softmax, o.router.scaling_factor, o.router.num_groups,
              o.router.group_topk, o.router.group_score_topk, o.balance, o.aux_loss_coeff,
              absl::StrJoin(o.further_balances, " ",
                            [](std::string* out, const BalanceLoss& loss) {
                              absl::StrAppend(out, static_cast<int>(loss.unit), ":", loss.coeff);
                            }),
              o.z_loss_coeff, o.expert_bias, o.quantile_bins, o.expert_bias_update_rate,
              o.capacity_factor.value_or(0), o.drop_policy, o.pad_to_capacity, o.sinkhorn,
              o.dispatch_in_parts, o.input_jitter_eps, o.router.choose_by_logit);
}

std::string DescribeHybrid(const TransformerOptions& o) {
  std::vector<int> kinds;
  for (const HybridLayer layer : o.hybrid_layers) kinds.push_back(static_cast<int>(layer));
  return Line(absl::StrJoin(kinds, ""), o.mamba.state_dim, o.mamba.head_dim, o.mamba.num_groups,
              o.mamba.num_heads, o.mamba.norm_all_groups, o.delta.conv_taps, o.delta.key_head_dim,
              o.delta.value_head_dim, o.delta.num_key_heads, o.delta.num_value_heads);
}

std::string Describe(const TransformerOptions& o) {
  return Describe(o.moe) +
         Line(o.num_layers, o.hidden_size, o.ffn_hidden_size, o.num_attention_heads,
              o.num_query_groups, o.kv_channels, o.value_channels, o.latent.kv_rank,
              o.latent.q_rank, o.latent.rotated_size, o.norm.kind, o.norm.epsilon,
              o.norm.zero_centered_gamma, o.norm.bias, o.activation, o.gated, o.gate, o.gate_limit,
              o.gate_offset, o.linear_bias, o.qkv_bias, o.mlp_bias, o.qk_norm, o.rotary,
              o.rotary_options.base, o.rotary_options.percent, o.rotary_options.interleaved,
              o.rotary_options.interpolation_factor, o.rotary_options.scaling_factor,
              o.rotary_options.yarn.factor, o.rotary_options.yarn.original_context,
              o.rotary_options.yarn.beta_fast, o.rotary_options.yarn.beta_slow,
              o.rotary_options.yarn.round_range, o.rotary_options.yarn.mscale,
              o.rotary_options.yarn.mscale_all_dim, o.rotary_options.local_base,
              absl::StrJoin(o.rotary_options.longrope.long_factors, ","),
              absl::StrJoin(o.rotary_options.longrope.short_factors, ","),
              o.rotary_options.longrope.original_context, o.rotary_options.longrope.is_long,
              o.rotary_options.longrope.magnitude, o.qk_norm_all_heads, o.qk_norm_each_head,
              o.reordered_norm, o.parallel_residual, o.parallel_shared_norm, o.output_gate,
              o.residual_multiplier, o.score_softcap, absl::StrJoin(o.rotary_layers, ""),
              o.window_size, absl::StrJoin(o.window_layers, ""), o.sink, o.hidden_dropout,
              o.attention_dropout, o.init_std, o.output_init_std, o.dtype,
              o.recompute.core_attention, o.recompute.mlp, o.recompute.norm,
              o.recompute.latent_heads, o.recompute.experts, o.recompute.mlp_chunk_tokens,
              o.recompute.attention_chunk_tokens, o.sequence_parallel, o.tp_comm_overlap,
              o.context_parallel, o.context_team_size, o.causal, o.post_norm, o.sandwich_norm,
              o.relative_positions.buckets, o.relative_positions.max_distance, o.softmax_scale,
              o.float8.enabled, o.float8.gradient, o.float8.weight_gradient,
              o.float8.first_layers_without, o.float8.last_layers_without, o.float8.recipe,
              o.float8.power_of_two_scales, o.float8.history_options.length,
              o.float8.history_options.most_recent, o.float8.history_options.margin) +
         Line(o.lora.dim, o.lora.alpha, o.lora.dropout, absl::StrJoin(o.lora.target_modules, " ")) +
         DescribeHybrid(o);
}

std::string Describe(const TrainerOptions& o) {
  const OptimizerParamSchedule& s = o.schedule;
  return Describe(o.model.transformer) +
         Line(o.model.vocab_size, o.model.padded_vocab_size, o.model.learned_positions,
              o.model.max_positions, o.model.tied_embeddings, o.model.embedding_init_std,
              o.model.embedding_scale, o.model.logit_softcap, o.model.xavier_uniform,
              o.model.xavier_embeddings, o.model.layer_recompute.method,
              o.model.layer_recompute.num_layers, o.model.num_offloaded_layers,
              o.model.offload_modules.bits(), o.model.attention_on_host, o.model.dropout_seed,
              o.model.num_token_types, o.model.kind, o.model.masked_lm_activation,
              o.model.sentence_order_head, o.model.num_encoder_layers, o.model.output_bias,
              o.model.output_scale, o.model.embedding_output_scale, o.model.mup_width_mult,
              o.model.logits_chunk, o.model.mtp_num_layers, o.packing.mtp_depths,
              o.packing.mtp_loss_factor, o.model.num_classes, o.model.num_choices,
              o.packing.sequences_per_sample) +
         Line(o.placement.stages, o.placement.chunks, absl::StrJoin(o.placement.layers, " "),
              o.placement.mtp_before_last, o.sharding, o.shards_states_over_instances,
              o.shard_copies, o.shard_copy_interval, o.data_parallel.overlap_grad_reduce,
              o.data_parallel.overlap_param_gather, o.data_parallel.gradient_dtype,
              o.data_parallel.gradient_scale, o.data_parallel.sparse_table,
              o.data_parallel.most_sparse_rows, o.data_parallel.float8_param_gather,
              o.data_parallel.secondary_shards, o.data_parallel.quantized_weights,
              o.data_parallel.quantized_gradients, o.data_parallel.compression.type,
              o.data_parallel.compression.start_iteration,
              o.data_parallel.compression.error_feedback, o.data_parallel.compression.density,
              o.data_parallel.compression.threshold, o.data_parallel.compression.max_density,
              o.data_parallel.compression.rank, o.data_parallel.compression.min_compression_rate,
              o.outer.sync_every, o.outer.lr, o.outer.momentum, o.outer.nesterov,
              o.outer.gradient_type, o.outer.num_fragments, o.outer.sync_delay,
              o.outer.update_alpha, o.outer.last_step, o.outer.elsewhere, o.islands.server_address,
              o.islands.secret_file, o.islands.island, o.islands.gradient_type,
              o.islands.federated.clip_norm, o.islands.federated.secure_sum_threshold,
              o.islands.federated.noise_multiplier, o.islands.federated.delta,
              o.islands.federated.max_epsilon, o.bucket_size, o.max_generation_context,
              o.placement.order, o.pipeline_schedule, o.microbatch_group,
              o.action_costs.Mean().backward_input) +
         Line(absl::StrJoin(o.freeze, " "), o.optimizer.kind, o.optimizer.adam_beta1,
              o.optimizer.adam_beta2, o.optimizer.adam_epsilon, o.optimizer.exp_avg_dtype,
              o.optimizer.exp_avg_sq_dtype, o.optimizer.store_param_remainders,
              o.optimizer.sgd_momentum, o.optimizer.lion_beta1, o.optimizer.lion_beta2,
              o.optimizer.muon.momentum, o.optimizer.muon.nesterov, o.optimizer.muon.num_ns_steps,
              o.optimizer.muon.scale_mode, o.optimizer.muon.extra_scale_factor,
              o.optimizer.muon.split_qkv, o.optimizer.muon.tensor_mode,
              o.optimizer.muon.product_dtype, o.optimizer.lamb_min_coeff,
              o.optimizer.lamb_max_coeff, o.optimizer.one_bit_adam_freeze_step,
              o.optimizer.one_bit_lamb.coeff_beta, o.optimizer.one_bit_lamb.factor_max,
              o.optimizer.one_bit_lamb.factor_min, o.optimizer.one_bit_lamb.factor_threshold,
              o.optimizer.zero_one.var_freeze_step, o.optimizer.zero_one.var_update_scaler,
              o.optimizer.zero_one.local_step_scaler, o.optimizer.zero_one.local_step_clipper,
              o.optimizer.delayed_gradients.has_value(), o.prompt_updates, o.qk_clip.enabled,
              o.qk_clip.threshold, o.qk_clip.alpha, o.host_fraction, o.state_directory,
              o.main_grads_dtype, o.gradients_on_host, o.weights_on_host, o.weight_directory,
              o.clip_grad, o.log_params_norm, o.log_num_zeros_in_grad, o.diagnostics_interval,
              o.replica_check_interval, o.rerun.mode, o.rerun.interval, o.rerun.spiky_loss_after) +
         Line(s.max_lr, s.min_lr, s.init_lr, s.lr_warmup_steps, s.lr_decay_steps, s.lr_decay_style,
              s.wsd_decay_style, s.wsd_decay_steps, s.start_weight_decay, s.end_weight_decay,
              s.weight_decay_steps, s.weight_decay_style, s.decoupled_max_lr.value_or(0),
              s.decoupled_min_lr, s.scaled_lr_factor) +
         Line(o.batch_size.global_batch_size, o.batch_size.granularity,
              absl::StrJoin(o.batch_size.steps, " ",
                            [](std::string* out, const BatchSizeStep& step) {
                              absl::StrAppend(out, step.samples, ":", step.size);
                            }),
              o.packing.layout.micro_batch_size, o.packing.layout.data_parallel_size,
              o.packing.seq_length, o.packing.max_micro_batches, o.packing.per_token_loss,
              o.packing.num_workers, o.packing.encoder_seq_length, o.max_encoder_context,
              o.cuda_graphs.enabled, o.cuda_graphs.warmup_steps) +
         Line(o.curriculum.min, o.curriculum.max, o.curriculum.total_steps, o.curriculum.multiple,
              o.curriculum.root_degree, absl::StrJoin(o.curriculum.lengths, " "),
              absl::StrJoin(o.curriculum.last_steps, " ")) +
         Line(o.random_ltd.min, o.random_ltd.max, o.random_ltd.total_steps, o.random_ltd.multiple);
}

std::string Describe(const std::optional<FillInTheMiddleOptions>& o) {
  if (!o.has_value()) return "no fill-in-the-middle\n";
  return Line(o->rate, o->spm_rate, o->fragment_rate, o->prefix_token, o->middle_token,
              o->suffix_token, o->pad_token, o->eod_token, o->split_token, o->no_prefix, o->seed);
}

std::string Describe(const DataOptions& o) {
  return Line(absl::StrJoin(o.train_data_path, " "), absl::StrJoin(o.valid_data_path, " "),
              absl::StrJoin(o.test_data_path, " "), o.per_split_data_args_path, o.data_args_path,
              o.mmap_bin_files, o.cache_path, o.cyclic, o.data_sharding) +
         Describe(o.fill_in_the_middle) +
         (o.sentences.has_value() ? Line(o.sentences->mask_prob, o.sentences->short_seq_prob,
                                         o.sentences->binary_head, o.sentences->decoder_seq_length)
                                  : "no sentences\n") +
         (o.conversations.has_value()
              ? Line(o.conversations->chat_template, o.conversations->drop_long)
              : "no conversations\n") +
         Line(o.sampling_alpha.value_or(-1), absl::StrJoin(o.loss_weights, " "),
              o.task.has_value() ? static_cast<int>(o.task->task) : -1,
              o.task.has_value() ? o.task->decoder_seq_length : 0) +
         Line(absl::StrJoin(o.data_path, " "), o.split, o.mock, o.stories, o.stories_bytes,
              o.stories_seed, o.seq_length, o.seed, o.reset_position_ids, o.reset_attention_mask,
              o.eod_mask_loss, o.multiple_validation_sets, o.full_validation, o.run.train_iters,
              o.run.global_batch_size, o.run.eval_interval, o.run.eval_iters, o.run.training_runs,
              o.training_run, absl::StrJoin(o.validation_set_names, " "));
}

std::string Describe(const EvaluationTaskOptions& o) {
  return Line(absl::StrJoin(o.files, " ", absl::PairFormatter("=")), o.limit, o.overlapping_eval,
              o.seq_length, o.global_batch_size);
}

std::string Describe(const RunOptions& o) {
  return Describe(o.trainer) + Describe(o.data) + Describe(o.tasks) +
         Line(o.parallel.tensor, o.parallel.tensor_side, o.parallel.tensor_depth,
              o.parallel.tensor_cube, o.parallel.context, o.parallel.pipeline, o.parallel.data,
              o.parallel.expert, o.parallel.expert_tensor, o.parallel.optimizer_instances,
              o.parallel.hosts, o.parallel.ranks_per_host, o.parallel.deduplicated_dispatch,
              absl::StrJoin(o.parallel.embedding_stages, " "), Name(o.parallel.algorithm),
              o.parallel.order.ToString(), o.topology_file) +
         Line(o.planning.auto_layout, o.planning.ranks, o.planning.hardware_file,
              o.planning.kernels_file) +
         Line(o.precision.dynamic_loss_scale, o.precision.constant_loss_scale,
              o.precision.dynamic.initial_scale, o.precision.dynamic.min_scale,
              o.precision.dynamic.window, o.precision.dynamic.hysteresis) +
         Line(o.tokenizer.type, o.tokenizer.vocab_size, o.tokenizer.null_tokenizer_eod_id,
              o.tokenizer.null_tokenizer_pad_id, o.tokenizer.vocab_file, o.tokenizer.merge_file,
              o.tokenizer.tokenizer_model, o.tokenizer.vocab_extra_ids,
              o.tokenizer.tiktoken_pattern, o.tokenizer.tiktoken_num_special_tokens,
              absl::StrJoin(o.tokenizer.tiktoken_special_tokens, " ")) +
         Line(o.loop.train_iters, absl::StrJoin(o.loop.iterations_to_skip, " "),
              absl::StrJoin(o.loop.phase_transitions, " "), o.data.run.train_samples,
              o.loop.eval_interval, o.loop.eval_iters, o.loop.eval_tasks_interval,
              o.loop.log_interval, absl::FormatDuration(o.loop.log_time), o.loop.exit_interval,
              o.loop.exit_duration_minutes, o.loop.log_throughput, o.loop.timing_log_level,
              o.loop.timing_log_option, o.loop.spikes.threshold, o.loop.spikes.window,
              o.loop.metrics_file, o.loop.tensorboard_dir, o.loop.pipeline_timeline_file,
              o.loop.on_event, o.loop.prometheus_textfile, o.loop.metrics_port) +
         Line(o.profile.enabled, o.profile.start, o.profile.end,
              absl::StrJoin(o.profile.ranks, " "), o.profile.directory) +
         Line(o.checkpoint.save, o.checkpoint.load, o.checkpoint.save_huggingface,
              o.checkpoint.save_interval, o.checkpoint.keep_last, o.checkpoint.retain_interval,
              o.checkpoint.async_save, o.checkpoint.finetune, o.checkpoint.upcycles,
              o.checkpoint.no_load_optim, o.checkpoint.use_checkpoint_args, o.checkpoint.local_save,
              o.checkpoint.local_save_interval, o.checkpoint.peer_copies) +
         Line(o.generation.enabled, o.generation.prompt, o.generation.tokens,
              o.generation.sampling.temperature, o.generation.sampling.top_k,
              o.generation.sampling.top_p, o.generation.sampling.seed, o.seed, o.num_threads,
              o.bind_cores, o.gemms.plan_file, o.gemms.time_kernels,
              o.gemms.fuse_bias_gradients.has_value(), o.gemms.fuse_bias_gradients.value_or(false),
              o.gemms.fuse_gelu, o.attention.backend, o.attention.plan_file, o.deterministic,
              o.ranks.processes, o.ranks.restarts, o.ranks.min_data_size,
              o.ranks.in_process_recovery, o.ranks.replacements, o.ranks.backend,
              o.ranks.sum_in_rank_order, o.ranks.check_collectives,
              absl::FormatDuration(o.ranks.start_timeout), absl::FormatDuration(o.ranks.timeout),
              absl::FormatDuration(o.ranks.heartbeat_timeout),
              absl::FormatDuration(o.ranks.stuck_timeout));
}

std::vector<std::string> OtherValues(const FieldRef& now) {
  switch (now.field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return {ValueText(now) == "true" ? "false" : "true"};
    case FieldDescriptor::CPPTYPE_STRING:
      return {"elsewhere"};
    case FieldDescriptor::CPPTYPE_ENUM: {
      std::vector<std::string> names;
      for (int i = 0; i < now.field->enum_type()->value_count(); ++i) {
        const std::string& name = now.field->enum_type()->value(i)->name();
        if (name != ValueText(now)) names.push_back(name);
      }
      return names;
    }
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return {"0.75", "0.5", "3"};
    default:
      return {"2", "4", "8", "3", "64", "1"};
  }
}

class FieldProbe {
 public:
  explicit FieldProbe(std::string path) : path_(std::move(path)) {}

  // Tries every other value in every context.
  void Run() {
    static const auto* const contexts = new std::set<std::vector<std::string>>(Contexts());
    for (const std::vector<std::string>& context : *contexts) {
      const auto before = LoadConfigFromString(kBase, "base", context, ConfigPurpose::kDryRun);
      ASSERT_THAT(before, absl_testing::IsOk()) << absl::StrJoin(context, " ");
      const FieldRef now = Resolve(before->config, path_);
      std::vector<std::string> values = OtherValues(now);
      std::vector<std::string> overrides = context;
      const auto help = Helps().find(path_);
      if (help != Helps().end()) {
        values = {help->second.value};
        overrides.insert(overrides.end(), help->second.also.begin(), help->second.also.end());
      }
      const std::string options = Describe(ToRunOptions(before->config, kVocabSize));
      for (const std::string& value : values) Try(value, ValueText(now), overrides, options);
    }
  }

  int heeded() const { return heeded_; }

 private:
  void Try(const std::string& value, const std::string& value_before,
           std::vector<std::string> overrides, const std::string& options_before) {
    overrides.push_back(absl::StrCat(path_, "=", value));
    const auto after = LoadConfigFromString(kBase, "base", overrides, ConfigPurpose::kDryRun);
    if (!after.ok() || ValueText(Resolve(after->config, path_)) == value_before) return;
    EXPECT_NE(Describe(ToRunOptions(after->config, kVocabSize)), options_before)
        << path_ << " is accepted and changes nothing, with " << absl::StrJoin(overrides, " ");
    ++heeded_;
  }

  const std::string path_;
  int heeded_ = 0;
};

TEST(ConfigEffectTest, EveryFieldChangesTheRunOrIsRefused) {
  for (const std::string& path : LeafPaths(*config::PretrainConfig::descriptor())) {
    if (IsOnlyRefused(path)) continue;
    FieldProbe probe(path);
    probe.Run();
    EXPECT_GT(probe.heeded(), 0) << path << " was refused in every setting";
  }
}

TEST(ConfigEffectTest, UnsupportedFieldsAreRefusedByName) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> refused = {
      {"system.device", {"system.device=cuda"}},
      {"is not available; expects one of tensorwise, delayed, blockwise",
       {"precision.bf16=true", "precision.fp8_format=e4m3", "precision.fp8_recipe=mxfp8"}},
      {"auto, flash, fused, local", {"system.attention_backend=unfused"}},
      {"p2p, a2a, allgather, a2a_p2p", {"parallel.cp_comm_type=\"a2a+p2p\""}},
      {"makes 512 ranks", {"parallel.data_parallel_size=512", "train.global_batch_size=1024"}}};
  for (const auto& [text, overrides] : refused) {
    const auto loaded = LoadConfigFromString(kBase, "base", overrides, ConfigPurpose::kRun);
    EXPECT_THAT(loaded.status(), absl_testing::StatusIs(absl::StatusCode::kInvalidArgument,
                                                        ::testing::HasSubstr(text)));
  }
}

}  // namespace
}  // namespace megatron
