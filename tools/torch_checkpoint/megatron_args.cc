#include "tools/torch_checkpoint/megatron_args.h"

#include <charconv>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "megatron/base/status_macros.h"
#include "tools/from_megatron/from_megatron.h"

namespace megatron {
namespace {

using Kind = PickleValue::Kind;

// The arguments that say what a model is; flags have the same names.
constexpr absl::string_view kOfModel[] = {
    "num_layers",
    "hidden_size",
    "ffn_hidden_size",
    "num_attention_heads",
    "kv_channels",
    "group_query_attention",
    "num_query_groups",
    "seq_length",
    "max_position_embeddings",
    "position_embedding_type",
    "rotary_base",
    "rotary_percent",
    "rotary_interleaved",
    "rotary_seq_len_interpolation_factor",
    "use_rope_scaling",
    "rope_scaling_factor",
    "no_rope_freq",
    "normalization",
    "norm_epsilon",
    "apply_layernorm_1p",
    "qk_layernorm",
    "attention_output_gate",
    "swiglu",
    "squared_relu",
    "quick_geglu",
    "activation_func_clamp_value",
    "glu_linear_offset",
    "add_qkv_bias",
    "untie_embeddings_and_output_weights",
    "hidden_dropout",
    "attention_dropout",
    "init_method_std",
    "window_size",
    "window_attn_skip_freq",
    "softmax_type",
    "moe_layer_freq",
    "moe_ffn_hidden_size",
    "moe_router_topk",
    "moe_router_pre_softmax",
    "moe_router_score_function",
    "moe_router_topk_scaling_factor",
    "moe_router_num_groups",
    "moe_router_group_topk",
    "moe_router_enable_expert_bias",
    "moe_shared_expert_intermediate_size",
    "moe_shared_expert_gate",
    "multi_latent_attention",
    "q_lora_rank",
    "kv_lora_rank",
    "qk_head_dim",
    "qk_pos_emb_head_dim",
    "v_head_dim",
    "rope_type",
    "rotary_scaling_factor",
    "mscale",
    "mscale_all_dim",
    "mtp_num_layers",
    "bf16",
    "fp16",
    "use_mup",
    "scaling_recipe",
    "is_hybrid_model",
    "hybrid_override_pattern",
    "hybrid_layer_pattern",
    // Without a counterpart, which is said of them.
    "qk_l2_norm",
    "apply_residual_connection_post_layernorm",
    "moe_latent_size",
    "moe_apply_probs_on_input",
    "moe_router_topk_limited_devices",
    "mtp_use_repeated_layer",
    "experimental_attention_variant",
    "heterogeneous_layers_config_path",
};

// These count where positions are YaRN's; latent attention has a YaRN of its own.
constexpr absl::string_view kOfYarn[] = {
    "yarn_rotary_scaling_factor",
    "yarn_original_max_position_embeddings",
    "yarn_beta_fast",
    "yarn_beta_slow",
    "yarn_mscale",
    "yarn_mscale_all_dim",
};

// These count where a hybrid model has layers M, or layers G; Megatron writes their defaults, too.
constexpr absl::string_view kOfMamba[] = {"mamba_state_dim", "mamba_head_dim", "mamba_num_groups",
                                          "mamba_num_heads"};
constexpr absl::string_view kOfDelta[] = {"linear_conv_kernel_dim", "linear_key_head_dim",
                                          "linear_value_head_dim", "linear_num_key_heads",
                                          "linear_num_value_heads"};

// These count with muP alone; Megatron writes their defaults, too.
constexpr absl::string_view kOfMup[] = {
    "mup_base_hidden_size",  "mup_embedding_mult",   "mup_output_mult",
    "mup_base_head_dim",     "mup_attn_scale_power", "scaling_base_hidden_size",
    "scaling_base_head_dim",
};

// The arguments that say how a run trains, besides its length and its batch.
constexpr absl::string_view kOfTraining[] = {
    "optimizer",
    "lr",
    "min_lr",
    "lr_decay_style",
    "lr_warmup_fraction",
    "lr_warmup_init",
    "decoupled_lr",
    "decoupled_min_lr",
    "weight_decay",
    "weight_decay_incr_style",
    "adam_beta1",
    "adam_beta2",
    "adam_eps",
    "clip_grad",
    "micro_batch_size",
    "global_batch_size",
    "seed",
    "calculate_per_token_loss",
    "reset_position_ids",
    "reset_attention_mask",
    "eod_mask_loss",
};
// And these with weight decay that grows, with fp16, and with experts.
constexpr absl::string_view kOfWeightDecay[] = {"start_weight_decay", "end_weight_decay"};
constexpr absl::string_view kOfLossScale[] = {"loss_scale", "initial_loss_scale", "min_loss_scale",
                                              "loss_scale_window", "hysteresis"};
constexpr absl::string_view kOfExperts[] = {
    "moe_router_load_balancing_type", "moe_aux_loss_coeff",         "moe_z_loss_coeff",
    "moe_router_bias_update_rate",    "moe_expert_capacity_factor", "moe_input_jitter_eps",
};

// Returns the number with the fewest digits that read back as it.
std::string ShortestText(double number) {
  char text[32];
  *std::to_chars(text, text + sizeof(text) - 1, number).ptr = '\0';
  return text;
}

// Returns a number or word as it stands on a command line; empty for what can't stand there.
std::string Shown(const PickleValue& value) {
  switch (value.kind) {
    case Kind::kInt:
      return absl::StrCat(value.integer);
    case Kind::kFloat:
      return ShortestText(value.number);
    case Kind::kTuple:
    case Kind::kList: {
      std::vector<std::string> items;
      for (const PickleValue* item : value.items) {
        if (!item->is(Kind::kInt)) return "";
        items.push_back(absl::StrCat(item->integer));
      }
      const std::string list = absl::StrJoin(items, ",");
      return value.is(Kind::kList) ? absl::StrCat("[", list, "]") : list;
    }
    case Kind::kText:
      for (const char c : value.text) {
        if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) &&
            !absl::StrContains("_.,+*()[]-", c))
          return "";
      }
      return value.text;
    default:
      return "";
  }
}

std::string NormName(const std::string& name) {
  if (name == "rmsnorm") return "RMSNorm";
  return name == "layernorm" ? "LayerNorm" : name;
}

// Appends the flag that gives the argument this value, unless it is what no flag gives.
absl::Status AppendFlag(absl::string_view name, const PickleValue& value, std::string* flags) {
  const std::string flag = absl::StrReplaceAll(name, {{"_", "-"}});
  if (value.is(Kind::kNone) || (value.is(Kind::kBool) && value.integer == 0))
    return absl::OkStatus();
  if (value.is(Kind::kBool)) {
    absl::StrAppend(flags, " --", flag);
    return absl::OkStatus();
  }
  std::string shown = Shown(value);
  if (name == "normalization") shown = NormName(shown);
  if (shown.empty())
    return absl::InvalidArgumentError(absl::StrCat("the argument ", name,
                                                   " has a value of "
                                                   "another type than Megatron's"));
  absl::StrAppend(flags, " --", flag, " '", shown, "'");
  return absl::OkStatus();
}

bool IsSet(const PickleValue& arguments, absl::string_view name) {
  const PickleValue* const value = arguments.Get(name);
  return value != nullptr && value->is(Kind::kBool) && value->integer != 0;
}

bool IsOff(const PickleValue& arguments, absl::string_view name) {
  const PickleValue* const value = arguments.Get(name);
  return value != nullptr && value->is(Kind::kBool) && value->integer == 0;
}

bool IsThere(const PickleValue& arguments, absl::string_view name) {
  const PickleValue* const value = arguments.Get(name);
  return value != nullptr && !value->is(Kind::kNone);
}

bool HasText(const PickleValue& arguments, absl::string_view name, absl::string_view text) {
  const PickleValue* const value = arguments.Get(name);
  return value != nullptr && value->is(Kind::kText) && value->text == text;
}

// Returns whether the argument is a list of ones, as Megatron-DeepSpeed's dense models have it for
// their number of experts.
bool IsListOfOnes(const PickleValue& value) {
  if (!value.is(Kind::kList)) return false;
  for (const PickleValue* item : value.items) {
    if (!item->is(Kind::kInt) || item->integer != 1) return false;
  }
  return true;
}

bool HasExperts(const PickleValue& arguments) {
  return IsThere(arguments, "num_experts") && !IsListOfOnes(*arguments.Get("num_experts"));
}

bool HasMup(const PickleValue& arguments) {
  const PickleValue* const recipe = arguments.Get("scaling_recipe");
  return IsSet(arguments, "use_mup") ||
         (recipe != nullptr && recipe->is(Kind::kText) && recipe->text == "mup");
}

// Returns whether a hybrid model has a layer of that letter.
bool HasLayer(const PickleValue& arguments, char letter) {
  for (const char* name : {"hybrid_override_pattern", "hybrid_layer_pattern"}) {
    const PickleValue* const pattern = arguments.Get(name);
    if (pattern != nullptr && pattern->is(Kind::kText) && absl::StrContains(pattern->text, letter))
      return true;
  }
  return false;
}

// Appends a flag with several values: a list of words or numbers, or one of either, that holds no
// spaces.
absl::Status AppendListFlag(absl::string_view name, const PickleValue& value, std::string* flags) {
  const bool is_list = value.is(Kind::kList) || value.is(Kind::kTuple);
  std::vector<const PickleValue*> items = {&value};
  if (is_list) items = value.items;
  std::string shown;
  for (const PickleValue* item : items) {
    const std::string one = item->is(Kind::kTuple) || item->is(Kind::kList) ? "" : Shown(*item);
    if (one.empty())
      return absl::InvalidArgumentError(
          absl::StrCat("the argument ", name, " has a value of another type than Megatron's"));
    absl::StrAppend(&shown, " '", one, "'");
  }
  absl::StrAppend(flags, " --", absl::StrReplaceAll(name, {{"_", "-"}}), shown);
  return absl::OkStatus();
}

// Appends the flags of the arguments of those names that are there.
absl::Status AppendFlags(const PickleValue& arguments, absl::Span<const absl::string_view> names,
                         std::string* flags) {
  for (const absl::string_view name : names) {
    const PickleValue* const value = arguments.Get(name);
    if (value == nullptr) continue;
    MEGATRON_RETURN_IF_ERROR(AppendFlag(name, *value, flags));
  }
  return absl::OkStatus();
}

// Returns whether the router's choice itself is balanced. A loss that balances it is no part of the
// model.
bool HasBalancedChoice(const PickleValue& arguments) {
  const PickleValue* const types = arguments.Get("moe_router_load_balancing_type");
  if (types == nullptr || !HasExperts(arguments)) return false;
  std::vector<const PickleValue*> items = {types};
  if (types->is(Kind::kList) || types->is(Kind::kTuple)) items = types->items;
  for (const PickleValue* item : items) {
    if (item->is(Kind::kText) && item->text != "none" && !absl::EndsWith(item->text, "aux_loss"))
      return true;
  }
  return false;
}

// Appends the flags of arguments that older Megatrons and Megatron-DeepSpeed name in another way.
absl::Status AppendOtherNames(const PickleValue& arguments, std::string* flags) {
  for (const auto& [name, other] :
       {std::pair<const char*, const char*>{"norm_epsilon", "layernorm_epsilon"},
        {"rotary_base", "rope_theta"}}) {
    if (arguments.Get(name) != nullptr || arguments.Get(other) == nullptr) continue;
    MEGATRON_RETURN_IF_ERROR(AppendFlag(name, *arguments.Get(other), flags));
  }
  if (IsSet(arguments, "use_rotary_position_embeddings"))
    absl::StrAppend(flags, " --position-embedding-type rope");
  const int64_t groups = MegatronNumber(arguments, "num_key_value_heads");
  if (groups > 0 && groups != MegatronNumber(arguments, "num_attention_heads") &&
      !IsSet(arguments, "group_query_attention"))
    absl::StrAppend(flags, " --group-query-attention --num-query-groups ", groups);
  return absl::OkStatus();
}

// Appends the flags that say what the model is.
absl::Status AppendModel(const PickleValue& arguments, std::string* all) {
  std::string& flags = *all;
  if (arguments.Get("num_layers") == nullptr)
    return absl::InvalidArgumentError("the checkpoint's arguments name no number of layers");
  MEGATRON_RETURN_IF_ERROR(AppendFlags(arguments, kOfModel, &flags));
  if (HasExperts(arguments)) {
    const PickleValue& experts = *arguments.Get("num_experts");
    if (experts.is(Kind::kList)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the argument num_experts is a list, ", Shown(experts),
          ": experts of Megatron-DeepSpeed are not read, only its models without experts"));
    }
    MEGATRON_RETURN_IF_ERROR(AppendFlag("num_experts", experts, &flags));
  }
  if (HasMup(arguments)) {
    MEGATRON_RETURN_IF_ERROR(AppendFlags(arguments, kOfMup, &flags));
  }
  if (HasLayer(arguments, 'M')) {
    MEGATRON_RETURN_IF_ERROR(AppendFlags(arguments, kOfMamba, &flags));
  }
  if (HasLayer(arguments, 'G')) {
    MEGATRON_RETURN_IF_ERROR(AppendFlags(arguments, kOfDelta, &flags));
  }
  if (HasText(arguments, "position_embedding_type", "yarn") &&
      !IsSet(arguments, "multi_latent_attention")) {
    MEGATRON_RETURN_IF_ERROR(AppendFlags(arguments, kOfYarn, &flags));
    if (IsOff(arguments, "yarn_correction_range_round_to_int"))
      absl::StrAppend(&flags, " --yarn-correction-range-round-to-int false");
  }
  if (HasBalancedChoice(arguments)) {
    constexpr char kBalance[] = "moe_router_load_balancing_type";
    MEGATRON_RETURN_IF_ERROR(AppendListFlag(kBalance, *arguments.Get(kBalance), &flags));
  }
  if (IsOff(arguments, "add_bias_linear")) absl::StrAppend(&flags, " --disable-bias-linear");
  if (IsOff(arguments, "bias_gelu_fusion")) absl::StrAppend(&flags, " --no-bias-gelu-fusion");
  return AppendOtherNames(arguments, &flags);
}

// Appends the flag of an argument unless it is absent, off or 0.
absl::Status AppendUnlessZero(const PickleValue& arguments, absl::string_view name,
                              std::string* flags) {
  const PickleValue* const value = arguments.Get(name);
  if (value == nullptr || (value->is(Kind::kInt) && value->integer == 0)) return absl::OkStatus();
  return AppendFlag(name, *value, flags);
}

// Appends the flags that say how the run trains.
absl::Status AppendTraining(const PickleValue& arguments, std::string* flags) {
  MEGATRON_RETURN_IF_ERROR(AppendFlags(arguments, kOfTraining, flags));
  const bool in_samples = IsThere(arguments, "train_samples");
  const std::string unit = in_samples ? "samples" : "iters";
  // Megatron computes one length from the other. Megatron-DeepSpeed's schedules may be in tokens.
  const std::string of_schedule = IsThere(arguments, "lr_decay_tokens") ? "tokens" : unit;
  MEGATRON_RETURN_IF_ERROR(AppendUnlessZero(arguments, absl::StrCat("train_", unit), flags));
  MEGATRON_RETURN_IF_ERROR(
      AppendUnlessZero(arguments, absl::StrCat("lr_decay_", of_schedule), flags));
  MEGATRON_RETURN_IF_ERROR(
      AppendUnlessZero(arguments, absl::StrCat("lr_warmup_", of_schedule), flags));
  if (HasText(arguments, "lr_decay_style", "WSD")) {
    for (const std::string& name :
         {std::string("lr_wsd_decay_style"), absl::StrCat("lr_wsd_decay_", unit)}) {
      MEGATRON_RETURN_IF_ERROR(AppendFlags(arguments, {name}, flags));
    }
  }
  if (!HasText(arguments, "weight_decay_incr_style", "constant")) {
    MEGATRON_RETURN_IF_ERROR(AppendFlags(arguments, kOfWeightDecay, flags));
  }
  if (IsSet(arguments, "fp16")) {
    MEGATRON_RETURN_IF_ERROR(AppendFlags(arguments, kOfLossScale, flags));
  }
  if (HasExperts(arguments)) {
    for (const absl::string_view name : kOfExperts) {
      if (!IsThere(arguments, name)) continue;
      MEGATRON_RETURN_IF_ERROR(AppendListFlag(name, *arguments.Get(name), flags));
    }
  }
  if (IsThere(arguments, "mtp_num_layers")) {
    MEGATRON_RETURN_IF_ERROR(AppendFlags(arguments, {"mtp_loss_scaling_factor"}, flags));
  }
  if (IsThere(arguments, "rampup_batch_size")) {
    MEGATRON_RETURN_IF_ERROR(
        AppendListFlag("rampup_batch_size", *arguments.Get("rampup_batch_size"), flags));
  }
  const PickleValue* const split = arguments.Get("split");
  if (split == nullptr || !split->is(Kind::kText)) return absl::OkStatus();
  PickleValue tight = *split;
  tight.text = absl::StrReplaceAll(split->text, {{" ", ""}});
  return AppendFlag("split", tight, flags);
}

// Returns the configuration that the flags say.
absl::StatusOr<config::PretrainConfig> ConfigOfFlags(const std::string& flags) {
  FromMegatronInput input;
  input.source = "the checkpoint's arguments";
  input.script = absl::StrCat("python pretrain_gpt.py", flags, "\n");
  input.model = "gpt";
  MEGATRON_ASSIGN_OR_RETURN(const FromMegatronResult result, FromMegatron(input));
  std::vector<std::string> reasons;
  for (const Finding& finding : result.findings) {
    if (finding.effect == Effect::kResults)
      reasons.push_back(absl::StrCat(finding.subject, ": ", finding.text));
  }
  if (!reasons.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the checkpoint's arguments have no counterpart here:\n  ",
                     absl::StrJoin(reasons, "\n  ")));
  }
  return result.config;
}

}  // namespace

int64_t MegatronNumber(const PickleValue& arguments, absl::string_view name) {
  const PickleValue* const value = arguments.Get(name);
  return value != nullptr && value->is(Kind::kInt) ? value->integer : -1;
}

absl::StatusOr<config::PretrainConfig> ConfigOfMegatronArgs(const PickleValue& arguments) {
  std::string flags;
  MEGATRON_RETURN_IF_ERROR(AppendModel(arguments, &flags));
  MEGATRON_ASSIGN_OR_RETURN(const config::PretrainConfig all, ConfigOfFlags(flags));
  config::PretrainConfig config;
  *config.mutable_model() = all.model();
  *config.mutable_precision() = all.precision();
  return config;
}

absl::StatusOr<config::PretrainConfig> ConfigOfMegatronRun(const PickleValue& arguments) {
  std::string flags;
  MEGATRON_RETURN_IF_ERROR(AppendModel(arguments, &flags));
  MEGATRON_RETURN_IF_ERROR(AppendTraining(arguments, &flags));
  MEGATRON_ASSIGN_OR_RETURN(const config::PretrainConfig all, ConfigOfFlags(flags));
  config::PretrainConfig config;
  *config.mutable_model() = all.model();
  *config.mutable_precision() = all.precision();
  *config.mutable_optimizer() = all.optimizer();
  *config.mutable_train() = all.train();
  CopySamples(all.data(), config.mutable_data());
  return config;
}

void CopySamples(const config::DataConfig& from, config::DataConfig* to) {
  if (from.has_split()) to->set_split(from.split());
  if (from.reset_position_ids()) to->set_reset_position_ids(true);
  if (from.reset_attention_mask()) to->set_reset_attention_mask(true);
  if (from.eod_mask_loss()) to->set_eod_mask_loss(true);
}

}  // namespace megatron
