// Converts our options to the config.json of a family of decoders.
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "megatron/layers/latent_scale.h"
#include "megatron/layers/longrope_scale.h"
#include "megatron/models/huggingface/hf_decoder.h"
#include "megatron/models/huggingface/hf_experts.h"
#include "megatron/models/huggingface/hf_mixers.h"

namespace megatron {
namespace {

void CheckBiases(const HfDecoder& family, const TransformerOptions& layer,
                 const HfRequirements& require) {
  const bool all = layer.linear_bias && layer.qkv_bias, any = layer.linear_bias || layer.qkv_bias;
  const bool of_mlps = layer.mlp_bias && !layer.linear_bias;
  require(!of_mlps || family.biases == HfBiases::kMlp, "add_mlp_bias", "no biases of MLPs alone");
  switch (family.biases) {
    case HfBiases::kNone:
      return require(!any, "biases, without disable_bias_linear or with add_qkv_bias", "none");
    case HfBiases::kQkv:
      return require(layer.qkv_bias && !layer.linear_bias, "biases other than add_qkv_bias's",
                     "those of q, k and v");
    case HfBiases::kAll:
      return require(all, "disable_bias_linear", "biases on all projections");
    case HfBiases::kOptional:
    case HfBiases::kUseBias:
      return require(all == any, "add_qkv_bias", "biases on all projections or on none");
    case HfBiases::kOptionalQkv:
      return require(!layer.linear_bias, "biases, without disable_bias_linear",
                     "those of q, k and v or none");
    case HfBiases::kMlp:
      return require(of_mlps && !any, "no add_mlp_bias, or other biases", "those of MLPs");
  }
}

void CheckBranches(const HfDecoder& family, const TransformerOptions& layer,
                   const HfRequirements& require) {
  const bool parallel = layer.parallel_residual, shared = layer.parallel_shared_norm;
  const bool has_a_key_for_each = layer.num_query_groups == layer.num_attention_heads;
  require(family.key_heads != HfKeyHeads::kEachHead || has_a_key_for_each, "num_query_groups",
          "a key and a value for each head");
  require(family.key_heads != HfKeyHeads::kMultiQuery || has_a_key_for_each ||
              layer.num_query_groups == 1,
          "num_query_groups", "one key and value, or one of each head");
  switch (family.branches) {
    case HfBranches::kInTurn:
      return require(!parallel, "parallel_residual", "MLPs that read what attention has added");
    case HfBranches::kPhi:
      return require(shared, "no parallel_residual_shared_norm",
                     "one norm in front of both branches");
    case HfBranches::kStableLm:
      return require(parallel == shared, "parallel_residual without parallel_residual_shared_norm",
                     "one norm in front of parallel branches");
    case HfBranches::kGptNeoX:
      return require(!shared, "parallel_residual_shared_norm", "a norm in front of each branch");
    case HfBranches::kFalcon:
      return require(parallel || has_a_key_for_each || layer.num_query_groups == 1,
                     "num_query_groups without parallel_residual",
                     "one key then, or one for each head");
  }
}

void CheckRotatedLayers(const HfDecoder& family, const TransformerOptions& layer,
                        const HfRequirements& require) {
  switch (family.rotated_layers) {
    case HfRotatedLayers::kListed:
      return;
    case HfRotatedLayers::kAll:
      return require(layer.rotary_layers.empty(), "no_rope_freq", "rotation in all layers");
    case HfRotatedLayers::kWithWindowAlone:
      require(layer.window_size > 0, "no window_size", "windows in the layers that rotate");
      [[fallthrough]];
    case HfRotatedLayers::kWithWindow:
      const std::vector<bool> with =
          layer.window_size > 0 ? layer.window_layers : std::vector<bool>();
      require(layer.rotary_layers == with, "no_rope_freq, or its absence",
              "rotation in the layers with windows alone");
  }
}

void CheckRotation(const HfDecoder& family, const TransformerOptions& layer,
                   const HfRequirements& require) {
  const RotaryOptions& rotary = layer.rotary_options;
  const bool linear = rotary.interpolation_factor != 1, llama3 = rotary.scaling_factor > 0;
  const bool yarn = rotary.yarn.factor > 0, longrope = !rotary.longrope.long_factors.empty();
  if (family.positions == HfPositions::kLearned)
    return require(!layer.rotary, "position_embedding_type rope", "learned positions");
  require(layer.rotary || family.positions == HfPositions::kOptional,
          "position_embedding_type none", "rotary positions");
  require(rotary.percent == 1 || family.partial_rotation, "rotary_percent",
          "rotation of all channels of a head");
  require(linear + llama3 + yarn + longrope <= 1,
          "rotary_seq_len_interpolation_factor, use_rope_scaling, YaRN and LongRoPE together",
          "one rope_scaling");
  require(family.scaled_rotation || !(linear || llama3 || yarn), "scaled rotary positions",
          "no rope_scaling that all versions of transformers heed");
  require(!yarn || (rotary.yarn.mscale > 0 && rotary.yarn.mscale_all_dim > 0) ||
              (rotary.yarn.mscale == 1 && rotary.yarn.mscale_all_dim == 0),
          "one of yarn_mscale and yarn_mscale_all_dim", "both or neither");
  require(family.longrope || !longrope, "longrope_long_factors", "one factor of all wavelengths");
  require(family.theta_key != nullptr || rotary.base == family.rope_theta, "rotary_base",
          absl::StrCat(family.rope_theta));
  CheckRotatedLayers(family, layer, require);
  // Their layers with windows are not scaled.
  if (family.plain_windows) {
    const bool differ = layer.window_size > 0 && (linear || llama3 || yarn);
    return require(rotary.local_base == rotary.base || (rotary.local_base == 0 && !differ),
                   "rotary_base_local, or its absence",
                   "rotary_base in layers with windows, which nothing scales");
  }
  const bool local = family.local_rotation && layer.window_size > 0;
  require((rotary.local_base > 0) == local, "rotary_base_local, or its absence",
          local ? "another base in layers with windows" : "one base");
}

void CheckWindows(const HfDecoder& family, const TransformerOptions& layer,
                  const HfRequirements& require) {
  const bool none = family.windows == HfWindows::kNone || family.windows == HfWindows::kRefused;
  require(!none || layer.window_size == 0, "window_size", "attention that sees all before");
  require(family.windows == HfWindows::kByLayer || layer.window_layers.empty(),
          "window_attn_skip_freq", "layers that are alike");
}

void CheckGate(const HfDecoder& family, const TransformerOptions& layer,
               const HfRequirements& require) {
  switch (family.gate) {
    case HfGate::kUngatedGelu:
      return require(!layer.gated && layer.activation == ops::Activation::kGeluTanh,
                     "swiglu, or activation_func other than gelu_tanh", "gelu_tanh and no gate");
    case HfGate::kUngatedGeluErf:
      return require(!layer.gated && layer.activation == ops::Activation::kGeluErf,
                     "swiglu, or activation_func other than gelu_erf", "gelu_erf and no gate");
    case HfGate::kUngatedEitherGelu:
      return require(!layer.gated && (layer.activation == ops::Activation::kGeluErf ||
                                      layer.activation == ops::Activation::kGeluTanh),
                     "swiglu, or activation_func other than gelu_erf and gelu_tanh",
                     "one of these and no gate");
    case HfGate::kUngatedSquaredRelu:
      return require(!layer.gated && layer.activation == ops::Activation::kSquaredRelu,
                     "swiglu, or activation_func other than squared_relu",
                     "squared_relu and no gate");
    case HfGate::kSilu:
      require(layer.gated && layer.gate == ops::Activation::kSilu, "no swiglu", "swiglu");
      return require(layer.has_plain_gate(), "activation_func_clamp_value, or glu_linear_offset",
                     "neither");
    case HfGate::kGeluTanh:
      require(layer.gated && layer.gate == ops::Activation::kGeluTanh,
              "activation_func other than gelu_tanh with gated_linear_unit", "that");
      return require(layer.has_plain_gate(), "activation_func_clamp_value, or glu_linear_offset",
                     "neither");
    case HfGate::kGptOss:
      return require(layer.gated && layer.gate == ops::Activation::kQuickGelu &&
                         layer.gate_limit == 7 && layer.gate_offset == 1,
                     "activation_func other than quick_gelu with gated_linear_unit, "
                     "activation_func_clamp_value: 7 and glu_linear_offset: 1",
                     "that");
  }
}

// Returns what 1 is divided by to give the scale.
double Inverse(double scale) {
  const double inverse = 1 / scale, whole = std::round(inverse);
  return std::abs(inverse - whole) < 1e-6 * whole ? whole : inverse;
}

// The number whose root scores are divided by.
double QueryScalar(const TransformerOptions& layer) {
  if (layer.softmax_scale == 0) return static_cast<double>(layer.kv_channels);
  const double scale = layer.softmax_scale;
  return Inverse(scale * scale);
}

void CheckScales(const HfDecoder& family, const ModelOptions& options,
                 const HfRequirements& require) {
  const TransformerOptions& layer = options.transformer;
  require(layer.norm.zero_centered_gamma == family.zero_centered,
          family.zero_centered ? "no apply_layernorm_1p" : "apply_layernorm_1p",
          family.zero_centered
              ? "gains that are stored less one"
              : "gains that are stored as they are; adding the one would round them");
  require(layer.reordered_norm == family.reordered_norm, "reordered_norm, or its absence",
          family.reordered_norm ? "norms behind branches alone" : "norms in front of branches");
  require(family.softcaps || (layer.score_softcap == 0 && options.logit_softcap == 0),
          "attn_logit_softcapping, or final_logit_softcapping", "no caps");
  require(layer.sandwich_norm == family.sandwich_norm, "sandwich_norm, or its absence",
          family.sandwich_norm ? "norms on both sides of a branch" : "none behind branches");
  require(options.embedding_output_scale == 1, "use_mup", "embeddings without a factor");
  if (family.multipliers) return;
  const float scale = family.gemma ? std::sqrt(static_cast<float>(layer.hidden_size)) : 1.0f;
  require(options.embedding_scale == scale, "embedding_scale", absl::StrCat("the factor ", scale));
  require(options.output_scale == 1 || family.logit_scale, "output_scale, or use_mup,",
          "logits without a factor");
  require(layer.residual_multiplier == 1, "residual_multiplier", "branches without a factor");
  if (family.is_latent()) {
    return require(layer.softmax_scale == LatentSoftmaxScale(layer), "softmax_scale",
                   "scores that are scaled by kv_channels and YaRN");
  }
  require(layer.softmax_scale == 0 ||
              (family.query_scalar &&
               static_cast<float>(1 / std::sqrt(QueryScalar(layer))) == layer.softmax_scale),
          "softmax_scale", "scores that are divided by the root of head_dim");
}

HfJson RopeScaling(const RotaryOptions& rotary) {
  if (rotary.scaling_factor > 0) {
    return {{"rope_type", "llama3"},
            {"factor", rotary.scaling_factor},
            {"low_freq_factor", 1.0},
            {"high_freq_factor", 4.0},
            {"original_max_position_embeddings", 8192}};
  }
  if (rotary.interpolation_factor != 1)
    return {{"rope_type", "linear"}, {"factor", rotary.interpolation_factor}};
  const LongRopeOptions& longrope = rotary.longrope;
  if (!longrope.long_factors.empty()) {
    return {{"type", "longrope"},
            {"long_factor", longrope.long_factors},
            {"short_factor", longrope.short_factors}};
  }
  const YarnOptions& yarn = rotary.yarn;
  if (yarn.factor == 0) return nullptr;
  HfJson scaling = {
      {"rope_type", "yarn"},
      {"factor", yarn.factor},
      {"beta_fast", yarn.beta_fast},
      {"beta_slow", yarn.beta_slow},
      {"truncate", yarn.round_range},
      {"original_max_position_embeddings", static_cast<int64_t>(yarn.original_context)}};
  if (yarn.mscale_all_dim > 0)
    scaling.update({{"mscale", yarn.mscale}, {"mscale_all_dim", yarn.mscale_all_dim}});
  return scaling;
}

HfJson NumberOrNull(float value) { return value > 0 ? HfJson(ShortestDouble(value)) : HfJson(); }

HfJson LayerTypes(const TransformerOptions& layer) {
  HfJson types = HfJson::array();
  for (int64_t i = 0; i < layer.num_layers; ++i)
    types.push_back(layer.HasWindow(i) ? "sliding_attention" : "full_attention");
  return types;
}

void WriteLatents(const TransformerOptions& layer, HfJson* config) {
  const LatentOptions& latent = layer.latent;
  config->update({{"qk_nope_head_dim", layer.kv_channels - latent.rotated_size},
                  {"qk_rope_head_dim", latent.rotated_size},
                  {"kv_lora_rank", latent.kv_rank},
                  {"q_lora_rank", latent.q_rank > 0 ? HfJson(latent.q_rank) : HfJson()},
                  {"v_head_dim", layer.value_size()}});
}

void WriteWindow(const HfDecoder& family, const TransformerOptions& layer, HfJson* config) {
  // One that is longer than any text is none.
  constexpr int64_t kNever = 4096;
  switch (family.windows) {
    case HfWindows::kNone:
      return;
    case HfWindows::kRefused:
      (*config)["use_sliding_window"] = false;
      return;
    case HfWindows::kAllLayers:
      (*config)["sliding_window"] =
          layer.window_size > 0 ? HfJson(layer.window_size + 1) : HfJson();
      return;
    case HfWindows::kByLayer:
      if (layer.window_size == 0 && family.rotated_layers == HfRotatedLayers::kWithWindow) {
        (*config)["sliding_window"] = nullptr;
      } else {
        (*config)["sliding_window"] = layer.window_size > 0 ? layer.window_size + 1 : kNever;
      }
      (*config)["layer_types"] = LayerTypes(layer);
  }
}

void WriteMultipliers(const ModelOptions& options, HfJson* config) {
  const TransformerOptions& layer = options.transformer;
  const double usual = 1 / std::sqrt(static_cast<double>(layer.kv_channels));
  config->update({{"embedding_multiplier", ShortestDouble(options.embedding_scale)},
                  {"logits_scaling", Inverse(ShortestDouble(options.output_scale))},
                  {"residual_multiplier", ShortestDouble(layer.residual_multiplier)},
                  {"attention_multiplier",
                   layer.softmax_scale == 0 ? usual : ShortestDouble(layer.softmax_scale)}});
}

void WriteRotatedLayers(const TransformerOptions& layer, HfJson* config) {
  HfJson rotate = HfJson::array();
  for (int64_t i = 0; i < layer.num_layers; ++i) rotate.push_back(layer.Rotates(i) ? 1 : 0);
  (*config)["no_rope_layers"] = rotate;
}

void WriteShareOfRotation(const HfDecoder& family, const TransformerOptions& layer,
                          HfJson* config) {
  const double share = layer.rotary_options.percent;
  if (family.rotated_channels > 0) {
    (*config)[family.share_key] =
        static_cast<int64_t>(static_cast<double>(layer.kv_channels) * share);
  } else {
    (*config)[family.share_key] = share;
  }
}

void WriteBiases(const HfDecoder& family, const TransformerOptions& layer, HfJson* config) {
  switch (family.biases) {
    case HfBiases::kNone:
      if (family.qk_norm) (*config)["attention_bias"] = false;
      return;
    case HfBiases::kQkv:
    case HfBiases::kMlp:
      return;
    case HfBiases::kAll:
      (*config)["attention_bias"] = true;
      return;
    case HfBiases::kOptional:
      (*config)["attention_bias"] = (*config)["mlp_bias"] = layer.linear_bias;
      return;
    case HfBiases::kUseBias:
      (*config)[family.bias_key] = layer.linear_bias;
      return;
    case HfBiases::kOptionalQkv:
      (*config)[family.bias_key] = layer.qkv_bias;
  }
}

void WriteBranches(const HfDecoder& family, const TransformerOptions& layer, HfJson* config) {
  const int64_t heads = layer.num_attention_heads, keys = layer.num_query_groups;
  const bool parallel = layer.parallel_residual, shared = layer.parallel_shared_norm;
  const bool is_new = parallel && (!shared || (keys != 1 && keys != heads));
  switch (family.branches) {
    case HfBranches::kInTurn:
    case HfBranches::kPhi:
      return;
    case HfBranches::kStableLm:
    case HfBranches::kGptNeoX:
      (*config)["use_parallel_residual"] = parallel;
      return;
    case HfBranches::kFalcon:
      config->update({{"alibi", false},
                      {"new_decoder_architecture", is_new},
                      {"multi_query", keys == 1},
                      {"num_kv_heads", keys},
                      {"parallel_attn", parallel}});
      if (is_new) (*config)["num_ln_in_parallel_attn"] = shared ? 1 : 2;
  }
}

// The name of what an MLP or an expert has between its linear layers.
const char* ActivationName(const HfDecoder& family, ops::Activation activation) {
  const absl::string_view usual = family.activation;
  switch (family.gate) {
    case HfGate::kUngatedGeluErf:
      return "gelu";
    case HfGate::kUngatedEitherGelu:
      if (activation == ops::Activation::kGeluErf) return "gelu";
      // The names of one function differ in how transformers rounds it.
      return usual == "gelu" ? "gelu_new" : family.activation;
    case HfGate::kSilu:
    case HfGate::kGptOss:
      return "silu";
    case HfGate::kGeluTanh:
    case HfGate::kUngatedGelu:
      return "gelu_pytorch_tanh";
    case HfGate::kUngatedSquaredRelu:
      return "relu2";
  }
  return "";
}

// Returns the parts of a model of mamba2, which has no attention.
HfJson Mamba2Config(const HfDecoder& family, const TransformerOptions& layer) {
  HfJson config = {{"model_type", family.model_type},
                   {"architectures", HfJson::array({family.architecture})},
                   {"hidden_size", layer.hidden_size},
                   {"num_hidden_layers", layer.num_layers},
                   {"layer_norm_epsilon", ShortestDouble(layer.norm.epsilon)},
                   {"hidden_act", "silu"},
                   {"residual_in_fp32", false}};
  WriteHfMixers(family, layer, &config);
  return config;
}

}  // namespace

void CheckHfDecoder(const HfDecoder& family, const ModelOptions& options, HfReasons* reasons) {
  const TransformerOptions& layer = options.transformer;
  const HfRequirements require(family, reasons);
  require((layer.norm.kind == ops::Norm::kLayerNorm) == family.layer_norm,
          family.layer_norm ? "normalization RMSNorm" : "normalization LayerNorm",
          family.layer_norm ? "LayerNorm" : "RMSNorm");
  require(!family.layer_norm || layer.norm.bias == family.norm_biases,
          family.norm_biases ? "disable_bias_norm" : "no disable_bias_norm",
          family.norm_biases ? "biases of norms" : "norms without biases");
  const bool has_table = family.positions == HfPositions::kLearned;
  require(options.learned_positions == has_table,
          has_table ? "no learned positions" : "learned positions",
          has_table ? "a table of positions" : "none");
  require(options.output_bias == family.output_bias,
          family.output_bias ? "no add_output_bias" : "add_output_bias",
          family.output_bias ? "a bias behind the output matrix" : "none");
  CheckHfMixers(family, layer, require);
  if (family.mixers == HfMixers::kMamba2) {
    CheckHfExperts(family, layer, require);
    return CheckScales(family, options, require);
  }
  CheckRotation(family, layer, require);
  require(
      layer.is_latent() == family.is_latent(),
      family.is_latent() ? "no multi_latent_attention" : "multi_latent_attention",
      family.is_latent() ? "latent attention" : "queries, keys and values of the layer's input");
  require(family.is_latent() || layer.value_size() == layer.kv_channels, "v_head_dim",
          "values that are as wide as keys");
  require(!family.is_latent() || layer.norm.epsilon == 1e-6f, "norm_epsilon", "1e-06");
  CheckGate(family, layer, require);
  CheckBiases(family, layer, require);
  CheckBranches(family, layer, require);
  CheckWindows(family, layer, require);
  CheckHfExperts(family, layer, require);
  CheckScales(family, options, require);
  require(
      layer.qk_norm_all_heads == family.qk_norm_all_heads, "qk_layernorm_all_heads, or its absence",
      family.qk_norm_all_heads ? "norms of all heads together" : "no norms of all heads together");
  require(layer.output_gate == family.output_gate,
          family.output_gate ? "no attention_output_gate" : "attention_output_gate",
          family.output_gate ? "gates of attention's output" : "no gates of attention's output");
  require(family.optional_qk_norm || layer.qk_norm == family.qk_norm,
          family.qk_norm ? "no qk_layernorm" : "qk_layernorm",
          family.qk_norm ? "norms of queries and keys" : "none");
  const bool has_own_gains = family.head_gains != HfHeadGains::kShared;
  require(!layer.qk_norm || layer.qk_norm_each_head == has_own_gains,
          has_own_gains ? "no qk_layernorm_each_head" : "qk_layernorm_each_head",
          has_own_gains ? "gains of each head" : "the same gains for all heads");
  require(
      (layer.sink == AttentionSink::kLearned) == family.sinks && layer.sink != AttentionSink::kZero,
      "softmax_type", family.sinks ? "learnable sinks" : "no sinks");
  const LongRopeOptions& longrope = layer.rotary_options.longrope;
  require(longrope.long_factors.empty() ||
              longrope.magnitude == LongRopeMagnitude(static_cast<double>(options.max_positions),
                                                      longrope.original_context),
          "longrope_attention_factor", "the factor of both contexts");
  require(family.head_width != HfHeadWidth::kFixed ||
              layer.kv_channels * layer.num_attention_heads == layer.hidden_size,
          "kv_channels",
          "heads of hidden_size / num_attention_heads, as not all versions of "
          "transformers heed its head_dim");
}

HfJson HfDecoderConfig(const HfDecoder& family, const ModelOptions& options) {
  const TransformerOptions& layer = options.transformer;
  if (family.mixers == HfMixers::kMamba2) return Mamba2Config(family, layer);
  HfJson config = {{"model_type", family.model_type},
                   {"architectures", HfJson::array({family.architecture})},
                   {family.sizes.positions, options.max_positions},
                   {family.sizes.hidden, layer.hidden_size},
                   {family.ffn_key, layer.ffn_hidden_size},
                   {family.sizes.layers, HfLayers(family, layer)},
                   {family.sizes.heads, layer.num_attention_heads},
                   {family.epsilon_key, ShortestDouble(layer.norm.epsilon)},
                   {family.attention_dropout_key, ShortestDouble(layer.attention_dropout)}};
  if (family.theta_key != nullptr) {
    config.update({{family.theta_key, layer.rotary_options.base},
                   {"rope_scaling", RopeScaling(layer.rotary_options)}});
    // transformers 5 takes a null for the scaling with which gpt_oss was published.
    if (family.experts == HfExperts::kGptOss && config["rope_scaling"].is_null())
      config["rope_scaling"] = {{"rope_type", "default"}};
  }
  // The others know these by other names, and some refuse these.
  if (family.key_heads == HfKeyHeads::kGiven || family.key_heads == HfKeyHeads::kGivenOrEach) {
    config["num_key_value_heads"] = layer.num_query_groups;
    if (!family.is_latent()) config["head_dim"] = layer.kv_channels;
  }
  if (family.is_latent()) WriteLatents(layer, &config);
  config[family.gemma ? "hidden_activation" : family.activation_key] =
      ActivationName(family, layer.activation);
  WriteBiases(family, layer, &config);
  WriteBranches(family, layer, &config);
  if (family.key_heads == HfKeyHeads::kMultiQuery)
    config["multi_query"] = layer.num_query_groups == 1;
  if (family.optional_qk_norm) config[family.qk_norm_key] = layer.qk_norm;
  if (family.rotated_layers == HfRotatedLayers::kListed) WriteRotatedLayers(layer, &config);
  if (family.gate == HfGate::kGptOss) config["swiglu_limit"] = 7.0;
  WriteWindow(family, layer, &config);
  if (family.experts != HfExperts::kNone) WriteHfExperts(family, layer, &config);
  if (family.partial_rotation) WriteShareOfRotation(family, layer, &config);
  if (family.dropout_key != nullptr)
    config[family.dropout_key] = ShortestDouble(layer.hidden_dropout);
  if (family.embedding_dropout_key != nullptr)
    config[family.embedding_dropout_key] = ShortestDouble(layer.hidden_dropout);
  if (family.fused) {
    const LongRopeOptions& longrope = layer.rotary_options.longrope;
    config["original_max_position_embeddings"] =
        longrope.long_factors.empty() ? options.max_positions
                                      : static_cast<int64_t>(longrope.original_context);
  }
  WriteHfMixers(family, layer, &config);
  if (family.multipliers) WriteMultipliers(options, &config);
  if (family.logit_scale) config["logit_scale"] = ShortestDouble(options.output_scale);
  if (family.positions == HfPositions::kOptional)
    config["position_embedding_type"] = layer.rotary ? "rope" : "nope";
  if (!family.query_scalar) return config;
  const double scalar = QueryScalar(layer);
  const auto whole = static_cast<int64_t>(scalar);
  const bool is_whole = static_cast<double>(whole) == scalar;
  config.update({{"query_pre_attn_scalar", is_whole ? HfJson(whole) : HfJson(scalar)},
                 {"attn_logit_softcapping", NumberOrNull(layer.score_softcap)},
                 {"final_logit_softcapping", NumberOrNull(options.logit_softcap)}});
  if (layer.rotary_options.local_base > 0)
    config["rope_local_base_freq"] = layer.rotary_options.local_base;
  return config;
}

}  // namespace megatron
