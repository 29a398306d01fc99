// Converts the config.json of a family of decoders to our options.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
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

constexpr double kMaxBase = 1e12;
constexpr char kFullAttention[] = "full_attention", kSlidingAttention[] = "sliding_attention";

// Newer files have an object for each type of layer where these rotate in two ways.
bool HasRopeOfLayers(const HfFields& rope, const char* type) {
  return rope.Has(type) && rope.Get(type).is_object();
}

// Returns the parameters under `key`, an object, of layers without a window.
HfFields RopeOfFullAttention(const HfFields& fields, const char* key) {
  const HfFields rope = fields.Object(key);
  return HasRopeOfLayers(rope, kFullAttention) ? rope.Object(kFullAttention) : rope;
}

void ReadYarn(const HfFields& rope, double factor, YarnOptions* yarn) {
  constexpr double kMost = 1e6;
  yarn->factor = factor;
  if (rope.Has("original_max_position_embeddings")) {
    yarn->original_context =
        static_cast<double>(rope.Size("original_max_position_embeddings", int64_t{1} << 24));
  } else {
    rope.Error("original_max_position_embeddings", "is missing");
  }
  yarn->beta_fast = rope.Number("beta_fast", 1e-6, kMost, 32);
  yarn->beta_slow = rope.Number("beta_slow", 1e-6, kMost, 1);
  yarn->round_range = rope.Bool("truncate", true);
  // There both count or neither does; alone, 1 says what is so without it.
  const double mscale = rope.Number("mscale", 0, kMost, 0);
  if (rope.Has("mscale") != rope.Has("mscale_all_dim") &&
      (rope.Has("mscale_all_dim") || mscale != 1)) {
    rope.Error("mscale", "must be there with mscale_all_dim, or neither");
  }
  const double mscale_all_dim = rope.Number("mscale_all_dim", 0, kMost, 0);
  if (mscale > 0 && mscale_all_dim > 0) {
    yarn->mscale = mscale;
    yarn->mscale_all_dim = mscale_all_dim;
  }
  if (!rope.Has("attention_factor")) return;
  const auto m = [&](double scale) { return 1 + 0.1 * scale * std::log(factor); };
  const double magnitude = m(yarn->mscale) / m(yarn->mscale_all_dim);
  if (std::abs(rope.Number("attention_factor", 0, kMost, 0) - magnitude) > 1e-6 * magnitude)
    rope.Error("attention_factor", absl::StrCat("must be that of factor, ", magnitude));
}

// Phi-3 has had other names for it.
bool IsLongRope(const HfDecoder& family, const std::string& type) {
  return family.longrope && (type == "longrope" || type == "su" || type == "yarn");
}

void ReadRopeScaling(const HfDecoder& family, const HfFields& rope, RotaryOptions* rotary) {
  const std::string type = rope.Text("rope_type", rope.Text("type", "default"));
  const double factor = rope.Number("factor", 1, 1e6, 0);
  if (type == "default" || IsLongRope(family, type)) return;
  if (family.longrope || (type != "linear" && type != "llama3" && type != "yarn")) {
    rope.Error("rope_type", family.longrope ? "must be default or longrope"
                                            : "must be default, linear, llama3 or yarn");
  } else if (factor == 0) {
    rope.Error("factor", "is missing");
  } else if (type == "linear") {
    rotary->interpolation_factor = factor;
  } else if (type == "yarn") {
    ReadYarn(rope, factor, &rotary->yarn);
  } else {
    rotary->scaling_factor = factor;
    if (rope.Number("low_freq_factor", 0, 1e6, 0) != 1 ||
        rope.Number("high_freq_factor", 0, 1e6, 0) != 4 ||
        rope.Number("original_max_position_embeddings", 0, 1e9, 0) != 8192) {
      rope.Error("rope_type",
                 "low_freq_factor, high_freq_factor and "
                 "original_max_position_embeddings must be 1, 4 and 8192");
    }
  }
}

void ReadRopeOfWindows(const HfDecoder& family, const HfFields& rope, RotaryOptions* rotary) {
  if (rope.Text("rope_type", rope.Text("type", "default")) != "default")
    rope.Error("rope_type", "must be default: nothing scales layers with windows here");
  if (rope.Number("partial_rotary_factor", 0, 1, 1) != 1)
    rope.Error("partial_rotary_factor", "all channels of a head are rotated");
  double& base = family.local_rotation ? rotary->local_base : rotary->base;
  const double theirs = rope.Number("rope_theta", 1, kMaxBase, base);
  if (!family.local_rotation && theirs != base)
    rope.Error("rope_theta", absl::StrCat("must be as that of ", kFullAttention));
  base = theirs;
}

// Refuses objects in rope_parameters that are not read.
void CheckTypesOfLayers(const HfDecoder& family, const HfFields& fields, const char* key) {
  const bool may_differ = family.local_rotation || family.plain_windows;
  for (const auto& [name, value] : fields.Get(key).items()) {
    const bool is_type = name == kFullAttention || name == kSlidingAttention;
    if (!value.is_object() || (may_differ && is_type)) continue;
    return fields.Error(key, may_differ ? absl::StrCat("may have objects as ", kFullAttention,
                                                       " and ", kSlidingAttention, " alone")
                                        : absl::StrCat("must have no objects: all layers of ",
                                                       family.model_type, " rotate alike here"));
  }
}

// Newer files have all of it in rope_parameters.
void ReadRope(const HfDecoder& family, const HfFields& fields, RotaryOptions* rotary) {
  rotary->base = family.rope_theta;
  if (family.theta_key != nullptr) {
    rotary->base = fields.Number(family.theta_key, 1, kMaxBase, family.rope_theta);
    // transformers writes both, and heeds this one.
    if (absl::string_view(family.theta_key) != "rope_theta" &&
        fields.Number("rope_theta", 1, kMaxBase, rotary->base) != rotary->base) {
      fields.Error("rope_theta", absl::StrCat("must be as ", family.theta_key));
    }
  }
  if (family.experts == HfExperts::kGptOss && !fields.Has("rope_parameters") &&
      !fields.Has("rope_scaling") && !fields.IsNull("rope_scaling")) {
    fields.Error("rope_scaling",
                 "is missing, and transformers then scales as gpt_oss was published; "
                 "{\"rope_type\": \"default\"} says that nothing is scaled");
  }
  if (family.local_rotation)
    rotary->local_base = fields.Number("rope_local_base_freq", 1, kMaxBase, 10000);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!fields.Has(key)) continue;
    if (!fields.Get(key).is_object()) {
      fields.Error(key, "must be an object");
      continue;
    }
    CheckTypesOfLayers(family, fields, key);
    const HfFields rope = RopeOfFullAttention(fields, key);
    rotary->base = rope.Number("rope_theta", 1, kMaxBase, rotary->base);
    ReadRopeScaling(family, rope, rotary);
    if (HasRopeOfLayers(fields.Object(key), kSlidingAttention))
      ReadRopeOfWindows(family, fields.Object(key).Object(kSlidingAttention), rotary);
  }
}

// Sets the share from the number of channels that rotate.
void ReadRotatedChannels(const HfDecoder& family, const HfFields& fields,
                         TransformerOptions* layer) {
  const char* const key = family.share_key;
  const int64_t channels = fields.Size(key, kMaxHfHeads, family.rotated_channels);
  if (fields.IsNull(key) || channels % 2 != 0 || channels > layer->kv_channels)
    return fields.Error(key, "must be even, and at most the width of a head");
  const auto width = static_cast<double>(layer->kv_channels);
  double& share = layer->rotary_options.percent;
  share = static_cast<double>(channels) / width;
  // The product may be rounded to just below the number, which its use cuts off.
  if (static_cast<int64_t>(width * share) < channels) share = std::nextafter(share, 1.0);
}

void ReadShareOfRotation(const HfDecoder& family, const HfFields& fields,
                         TransformerOptions* layer) {
  if (family.rotated_channels > 0) return ReadRotatedChannels(family, fields, layer);
  double& share = layer->rotary_options.percent;
  share = fields.Number(family.share_key, 0, 1, family.rotated_share);
  if (absl::string_view(family.share_key) != "partial_rotary_factor" &&
      fields.Number("partial_rotary_factor", 0, 1, share) != share) {
    fields.Error("partial_rotary_factor", absl::StrCat("must be as ", family.share_key));
  }
  if (fields.Has("rope_parameters") && fields.Get("rope_parameters").is_object()) {
    share =
        RopeOfFullAttention(fields, "rope_parameters").Number("partial_rotary_factor", 0, 1, share);
  }
  const auto rotated = static_cast<int64_t>(static_cast<double>(layer->kv_channels) * share);
  if (share != 1 && !family.partial_rotation) {
    fields.Error(family.share_key, "all channels of a head are rotated");
  } else if (rotated == 0 || (rotated % 2 != 0 && layer->kv_channels % 2 == 0)) {
    // Heads of an odd width have been refused as such.
    fields.Error(family.share_key, "an odd number of channels is rotated, or none");
  }
}

std::vector<double> ReadFactors(const HfFields& rope, const char* key, size_t count) {
  constexpr double kMost = 1e6;
  std::vector<double> factors;
  bool holds = rope.Has(key) && rope.Get(key).is_array() && rope.Get(key).size() == count;
  for (const HfJson& factor : holds ? rope.Get(key) : HfJson::array()) {
    holds &= factor.is_number() && factor.get<double>() > 0 && factor.get<double>() <= kMost;
    factors.push_back(holds ? factor.get<double>() : 1);
  }
  if (!holds)
    rope.Error(key, absl::StrCat("must be a list of ", count, " numbers, one of each pair"));
  return holds ? factors : std::vector<double>(count, 1);
}

void ReadLongRope(const HfDecoder& family, const HfFields& fields, const char* key,
                  ModelOptions* options) {
  if (!fields.Has(key) || !fields.Get(key).is_object()) return;
  const HfFields rope = fields.Object(key);
  if (!IsLongRope(family, rope.Text("rope_type", rope.Text("type", "default")))) return;
  RotaryOptions& rotary = options->transformer.rotary_options;
  const auto rotated =
      static_cast<size_t>(static_cast<double>(options->transformer.kv_channels) * rotary.percent);
  LongRopeOptions& longrope = rotary.longrope;
  longrope.long_factors = ReadFactors(rope, "long_factor", rotated / 2);
  longrope.short_factors = ReadFactors(rope, "short_factor", rotated / 2);
  const int64_t original = fields.Size("original_max_position_embeddings", kMaxHfIds, 4096);
  if (original < 2) fields.Error("original_max_position_embeddings", "must be at least 2");
  // transformers 5 writes it once more there, and does not read it.
  if (rope.Size("original_max_position_embeddings", kMaxHfIds, original) != original) {
    rope.Error("original_max_position_embeddings",
               absl::StrCat("must be ", original, ": transformers reads the one beside ", key));
  }
  longrope.original_context = static_cast<double>(original);
  longrope.magnitude =
      LongRopeMagnitude(static_cast<double>(options->max_positions), longrope.original_context);
  if (rope.Has("attention_factor")) rope.Error("attention_factor", "is that of the contexts here");
}

int64_t ReadKeyHeads(const HfDecoder& family, const HfFields& fields, int64_t heads) {
  const char* key = "num_key_value_heads";
  switch (family.key_heads) {
    case HfKeyHeads::kEachHead:
      return heads;
    case HfKeyHeads::kMultiQuery:
      return fields.Bool("multi_query", true) ? 1 : heads;
    case HfKeyHeads::kGivenOrEach:
      break;
    case HfKeyHeads::kFalcon:
      if (!fields.Bool("new_decoder_architecture", false))
        return fields.Bool("multi_query", true) ? 1 : heads;
      key = "num_kv_heads";
      break;
    case HfKeyHeads::kGiven:
      // Other families have a number of their own where the file has none.
      const bool has_default = family.biases == HfBiases::kOptional || family.fused ||
                               family.qk_norm_all_heads || family.multipliers;
      if (!has_default && !fields.Has(key)) fields.Error(key, "is missing");
  }
  const int64_t key_heads = fields.Size(key, kMaxHfHeads, heads);
  if (heads % key_heads != 0)
    fields.Error(key, absl::StrCat("does not divide ", family.sizes.heads));
  return key_heads;
}

void ReadHeads(const HfDecoder& family, const HfFields& fields, TransformerOptions* layer) {
  const char* const heads = family.sizes.heads;
  layer->num_attention_heads = fields.Size(heads, kMaxHfHeads);
  layer->num_query_groups = ReadKeyHeads(family, fields, layer->num_attention_heads);
  const int64_t quotient = layer->hidden_size / layer->num_attention_heads;
  layer->kv_channels = fields.Size("head_dim", kMaxHfWidth, quotient);
  // What is said of head_dim below is only for files that have it.
  if (!fields.Has("head_dim")) {
    if (family.head_width == HfHeadWidth::kGiven) {
      fields.Error("head_dim", "is missing");
    } else if (layer->hidden_size % layer->num_attention_heads != 0) {
      fields.Error(heads, absl::StrCat("does not divide ", family.sizes.hidden));
    } else if (quotient % 2 != 0) {
      fields.Error(heads, "makes heads of an odd width");
    }
    return;
  }
  if (layer->kv_channels % 2 != 0 ||
      layer->kv_channels * layer->num_attention_heads > kMaxHfWidth) {
    fields.Error("head_dim", "is odd, or too large");
  }
  if (family.head_width == HfHeadWidth::kFixed &&
      layer->kv_channels * layer->num_attention_heads != layer->hidden_size) {
    fields.Error("head_dim", absl::StrCat("must be hidden_size / num_attention_heads: not all "
                                          "versions of transformers heed it in ",
                                          family.model_type));
  }
}

void ReadLatents(const HfFields& fields, TransformerOptions* layer) {
  layer->num_attention_heads = fields.Size("num_attention_heads", kMaxHfHeads);
  layer->num_query_groups = layer->num_attention_heads;
  if (fields.Size("num_key_value_heads", kMaxHfHeads, layer->num_attention_heads) !=
      layer->num_attention_heads) {
    fields.Error("num_key_value_heads", "each head has keys and values of its own");
  }
  const int64_t own = fields.Size("qk_nope_head_dim", kMaxHfHeads);
  const int64_t rotated = fields.Size("qk_rope_head_dim", kMaxHfHeads);
  if (own % 2 != 0) fields.Error("qk_nope_head_dim", "must be even");
  if (rotated % 2 != 0) fields.Error("qk_rope_head_dim", "must be even");
  layer->latent.rotated_size = rotated;
  layer->latent.kv_rank = fields.Size("kv_lora_rank", kMaxHfWidth);
  if (!fields.IsNull("q_lora_rank")) layer->latent.q_rank = fields.Size("q_lora_rank", kMaxHfWidth);
  layer->kv_channels = own + rotated;
  layer->value_channels = fields.Size("v_head_dim", kMaxHfHeads);
  if (layer->num_attention_heads * (own + rotated + layer->value_channels) > kMaxHfWidth)
    fields.Error("num_attention_heads", "all heads are too large together");
  layer->rotary_options.interleaved = true;
  fields.Refuse("rope_interleave", false, "neighbouring channels are rotated here");
  // The norms of latents have it whatever the file says.
  if (layer->norm.epsilon != 1e-6f) fields.Error("rms_norm_eps", "must be 1e-06");
}

// Returns which layers have the window: layer_types, or what stands for it in older files.
std::vector<bool> ReadLayersWithWindow(const HfDecoder& family, const HfFields& fields,
                                       int64_t num_layers) {
  std::vector<bool> layers(static_cast<size_t>(num_layers));
  if (fields.Has("layer_types"))
    return fields.LayersOfType("sliding_attention", "full_attention", layers);
  if (family.window_period == 0) {
    const double first = fields.Number("max_window_layers", 0, kMaxHfLayers, kMaxHfLayers);
    const bool any = !fields.IsNull("sliding_window");
    for (size_t i = 0; i < layers.size(); ++i) layers[i] = any && static_cast<double>(i) >= first;
    return layers;
  }
  const bool says = family.local_rotation || family.rotates_with_window();
  const int64_t each =
      says ? fields.Size("sliding_window_pattern", kMaxHfLayers, family.window_period)
           : family.window_period;
  for (size_t i = 0; i < layers.size(); ++i) layers[i] = static_cast<int64_t>(i + 1) % each != 0;
  return layers;
}

// Sets which layers rotate, where the file lists them.
void ReadRotatedLayers(const HfFields& fields, TransformerOptions* layer) {
  const auto count = static_cast<size_t>(layer->num_layers);
  const int64_t each = fields.Size("no_rope_layer_interval", kMaxHfLayers, 4);
  std::vector<bool> rotate(count);
  for (size_t i = 0; i < count; ++i) rotate[i] = static_cast<int64_t>(i + 1) % each != 0;
  if (fields.Has("no_rope_layers")) {
    const HfJson& list = fields.Get("no_rope_layers");
    bool holds = list.is_array() && list.size() == count;
    for (size_t i = 0; holds && i < count; ++i) {
      holds = list[i] == 0 || list[i] == 1;
      rotate[i] = list[i] == 1;
    }
    if (!holds) fields.Error("no_rope_layers", "must be a list of a 0 or a 1 for each layer");
  }
  const auto with = std::count(rotate.begin(), rotate.end(), true);
  if (with == 0) fields.Error("no_rope_layers", "no layer rotates queries and keys");
  if (with < layer->num_layers) layer->rotary_layers = rotate;
}

// The window matters where it is shorter than the positions. Theirs has the position itself.
void ReadWindow(const HfDecoder& family, const HfFields& fields, int64_t positions,
                TransformerOptions* layer) {
  if (family.windows == HfWindows::kNone) return;
  if (family.windows == HfWindows::kRefused && !fields.Bool("use_sliding_window", false)) return;
  const bool by_layer = family.windows == HfWindows::kByLayer;
  const bool rotates_there = family.rotates_with_window();
  const bool has_window = family.rotated_layers == HfRotatedLayers::kWithWindowAlone ||
                          !fields.IsNull("sliding_window");
  if (by_layer) {
    layer->window_layers = ReadLayersWithWindow(family, fields, layer->num_layers);
    const auto begin = layer->window_layers.begin(), end = layer->window_layers.end();
    const auto with = std::count(begin, end, true);
    if (with == 0 || with == end - begin) layer->window_layers.clear();
    if (with == 0 && rotates_there && has_window)
      fields.Error("layer_types", "no layer rotates queries and keys, as none has the window");
    if (with == 0) return;
    if (rotates_there) layer->rotary_layers = layer->window_layers;
    if (fields.IsNull("sliding_window")) fields.Error("sliding_window", "must be a number");
  }
  if (!by_layer && fields.IsNull("sliding_window")) return;
  if (!fields.Has("sliding_window") && family.window == 0) return;
  const int64_t window = fields.Size("sliding_window", kMaxHfIds, family.window);
  // Layers with windows may rotate in another way: the window stays.
  if (window >= positions && !by_layer) return;
  constexpr int64_t kLongest = int64_t{1} << 24;
  if (family.windows == HfWindows::kRefused) {
    fields.Error("sliding_window", absl::StrCat(family.model_type,
                                                "'s attention sees all that came before here; "
                                                "use_sliding_window: false turns the window off"));
  } else if (window < 2 || window > kLongest) {
    fields.Error("sliding_window", absl::StrCat("must be at least 2 and at most ", kLongest));
  } else {
    layer->window_size = window - 1;
  }
  RotaryOptions& rotary = layer->rotary_options;
  if (family.plain_windows &&
      (rotary.interpolation_factor != 1 || rotary.scaling_factor > 0 || rotary.yarn.factor > 0)) {
    rotary.local_base = rotary.base;
  }
}

void ReadGate(const HfDecoder& family, const HfFields& fields, TransformerOptions* layer) {
  const auto require = [&](const char* key, const std::string& name) {
    if (fields.Text(key, name) != name) fields.Error(key, absl::StrCat("must be ", name));
  };
  layer->gated = family.is_gated();
  if (family.gate == HfGate::kUngatedGelu) return require("hidden_act", "gelu_pytorch_tanh");
  if (family.gate == HfGate::kUngatedGeluErf) {
    layer->activation = ops::Activation::kGeluErf;
    return require(family.activation_key, "gelu");
  }
  if (family.gate == HfGate::kUngatedEitherGelu) {
    const std::string name = fields.Text(family.activation_key, family.activation);
    if (name == "gelu") {
      layer->activation = ops::Activation::kGeluErf;
    } else if (name != "gelu_new" && name != "gelu_fast" && name != "gelu_pytorch_tanh") {
      fields.Error(family.activation_key, "must be gelu, gelu_new, gelu_fast or gelu_pytorch_tanh");
    }
    return;
  }
  if (family.gate == HfGate::kUngatedSquaredRelu) {
    layer->activation = ops::Activation::kSquaredRelu;
    return require("hidden_act", "relu2");
  }
  if (family.gate == HfGate::kGeluTanh) {
    layer->gate = ops::Activation::kGeluTanh;
    // Versions of transformers differ in which of the two counts for the first Gemma.
    if (!family.query_scalar) require("hidden_act", "gelu_pytorch_tanh");
    return require("hidden_activation", "gelu_pytorch_tanh");
  }
  require("hidden_act", "silu");
  if (family.gate == HfGate::kSilu) return;
  // Its activation is the same whatever hidden_act says.
  layer->gate = ops::Activation::kQuickGelu;
  layer->gate_limit = 7;
  layer->gate_offset = 1;
  if (fields.Number("swiglu_limit", 0, 1e6, 7) != 7) fields.Error("swiglu_limit", "must be 7");
}

void ReadBiases(const HfDecoder& family, const HfFields& fields, TransformerOptions* layer) {
  layer->linear_bias = layer->qkv_bias = false;
  switch (family.biases) {
    case HfBiases::kNone:
      fields.Refuse("attention_bias", true,
                    absl::StrCat(family.model_type, " has no biases in attention here"));
      fields.Refuse("mlp_bias", true, absl::StrCat(family.model_type, " has no biases here"));
      break;
    case HfBiases::kQkv:
      layer->qkv_bias = true;
      fields.Refuse("qkv_bias", false, "queries, keys and values have biases here");
      break;
    case HfBiases::kAll:
      layer->linear_bias = layer->qkv_bias = true;
      fields.Refuse("attention_bias", false, "attention has biases here");
      break;
    case HfBiases::kOptional:
      layer->linear_bias = layer->qkv_bias = fields.Bool("attention_bias", false);
      if (fields.Bool("mlp_bias", false) == layer->linear_bias) break;
      fields.Error("attention_bias",
                   "must be as mlp_bias: here biases are on all projections, on "
                   "those of q, k and v, or on none");
      break;
    case HfBiases::kUseBias:
      layer->linear_bias = layer->qkv_bias = fields.Bool(family.bias_key, family.has_biases);
      break;
    case HfBiases::kOptionalQkv:
      layer->qkv_bias = fields.Bool(family.bias_key, family.has_biases);
      for (const char* key : {"attention_out_bias", "mlp_bias"})
        fields.Refuse(key, true, "biases are on the projections of q, k and v alone here");
      break;
    case HfBiases::kMlp:
      layer->mlp_bias = true;
  }
}

void ReadBranches(const HfDecoder& family, const HfFields& fields, TransformerOptions* layer) {
  switch (family.branches) {
    case HfBranches::kInTurn:
      return fields.Refuse("use_parallel_residual", true, "an MLP reads what attention gave here");
    case HfBranches::kPhi:
      layer->parallel_residual = layer->parallel_shared_norm = true;
      return;
    case HfBranches::kStableLm:
      layer->parallel_residual = layer->parallel_shared_norm =
          fields.Bool("use_parallel_residual", false);
      return;
    case HfBranches::kGptNeoX:
      layer->parallel_residual = fields.Bool("use_parallel_residual", true);
      return;
    case HfBranches::kFalcon:
      const bool is_new = fields.Bool("new_decoder_architecture", false);
      const int64_t norms = fields.Size("num_ln_in_parallel_attn", 2, is_new ? 2 : 1);
      layer->parallel_residual = fields.Bool("parallel_attn", true);
      layer->parallel_shared_norm = layer->parallel_residual && norms == 1;
      if (is_new && !layer->parallel_residual)
        fields.Error("parallel_attn", "must be true with new_decoder_architecture");
      if (!is_new && norms == 2)
        fields.Error("num_ln_in_parallel_attn", "must be 1 without new_decoder_architecture");
      fields.Refuse("alibi", true, "positions are rotary here");
  }
}

void ReadGemma(const HfDecoder& family, const HfFields& fields, ModelOptions* options) {
  TransformerOptions& layer = options->transformer;
  options->embedding_scale = std::sqrt(static_cast<float>(layer.hidden_size));
  if (family.query_scalar) {
    const double scalar = fields.Number("query_pre_attn_scalar", 1e-6, 1e6, 256);
    if (scalar != static_cast<double>(layer.kv_channels))
      layer.softmax_scale = static_cast<float>(1 / std::sqrt(scalar));
  }
  if (layer.window_size == 0) layer.rotary_options.local_base = 0;
  // A null switches a cap off.
  const auto cap = [&](const char* key, double otherwise) {
    if (!family.softcaps && fields.Has(key))
      fields.Error(key, "scores and logits have no caps here");
    if (!family.softcaps || fields.IsNull(key)) return 0.0f;
    return static_cast<float>(fields.Number(key, 1e-6, 1e6, otherwise));
  };
  layer.score_softcap = cap("attn_logit_softcapping", 50);
  options->logit_softcap = cap("final_logit_softcapping", 30);
  fields.Refuse("use_bidirectional_attention", true, "attention sees what came before here");
}

// A norm, a mixer and nothing else are a layer of mamba2.
void ReadMamba2(const HfDecoder& family, const HfFields& fields, ModelOptions* options) {
  // The file has no number of positions, and the model none: it reads as many tokens as come.
  constexpr int64_t kPositions = int64_t{1} << 20;
  TransformerOptions& layer = options->transformer;
  layer.norm.epsilon =
      static_cast<float>(fields.Number("layer_norm_epsilon", 0, 1, family.epsilon));
  if (fields.Text("hidden_act", "silu") != "silu") fields.Error("hidden_act", "must be silu");
  ReadHfMixers(family, fields, &layer);
  options->max_positions = kPositions;
  // No layer has these parts. The sizes are such that ranks can share them out as mixers.
  layer.num_attention_heads = layer.num_query_groups = layer.mamba.num_heads;
  layer.kv_channels = layer.mamba.head_dim;
  layer.ffn_hidden_size = 4 * layer.hidden_size;
  layer.linear_bias = layer.qkv_bias = false;
}

void ReadMultipliers(const HfFields& fields, ModelOptions* options) {
  constexpr double kLeast = 1e-6, kMost = 1e6;
  options->embedding_scale =
      static_cast<float>(fields.Number("embedding_multiplier", kLeast, kMost, 1));
  options->output_scale = static_cast<float>(1 / fields.Number("logits_scaling", kLeast, kMost, 1));
  TransformerOptions& layer = options->transformer;
  layer.residual_multiplier =
      static_cast<float>(fields.Number("residual_multiplier", kLeast, kMost, 1));
  layer.softmax_scale = static_cast<float>(fields.Number("attention_multiplier", kLeast, kMost, 1));
}

// Returns whether the model has rotary positions.
bool ReadRotates(const HfDecoder& family, const HfFields& fields) {
  if (family.positions != HfPositions::kOptional) return family.positions == HfPositions::kRotary;
  const std::string type = fields.Text("position_embedding_type", "nope");
  if (type != "rope" && type != "nope")
    fields.Error("position_embedding_type", "must be rope or nope");
  return type == "rope";
}

// Weights may be in 8-bit floats with a scale for each block of 128 x 128 of them.
void CheckBlocksOfFloat8(const HfFields& fields) {
  if (!fields.Has("quantization_config") || !fields.Get("quantization_config").is_object()) return;
  const HfFields quantization = fields.Object("quantization_config");
  if (quantization.Text("quant_method", "") != "fp8") return;
  if (quantization.Text("fmt", "e4m3") != "e4m3") quantization.Error("fmt", "must be e4m3");
  if (!quantization.Has("weight_block_size") ||
      quantization.Get("weight_block_size") != HfJson::array({128, 128})) {
    quantization.Error("weight_block_size", "must be [128, 128]");
  }
}

}  // namespace

void ReadHfDecoder(const HfDecoder& family, const HfFields& fields, ModelOptions* options) {
  CheckCommonHfFields(fields, family.architecture,
                      family.experts == HfExperts::kGptOss ? "mxfp4" : "fp8");
  CheckBlocksOfFloat8(fields);
  if (absl::string_view(family.qk_norm_key) != "qk_layernorm")
    fields.Refuse("qk_layernorm", true, "the norms of its queries and keys are not those here");
  TransformerOptions& layer = options->transformer;
  fields.Refuse("scale_attn_weights", false, "attention is always scaled here");
  fields.Refuse("add_cross_attention", true, "there is no cross-attention here");
  if (!family.qk_norm && !family.optional_qk_norm)
    fields.Refuse("use_qk_norm", true, "queries and keys are not normalized here");
  layer.hidden_size = fields.Size(family.sizes.hidden, kMaxHfWidth);
  layer.num_layers = fields.Size(family.sizes.layers, kMaxHfLayers);
  layer.norm.kind = family.layer_norm ? ops::Norm::kLayerNorm : ops::Norm::kRmsNorm;
  layer.norm.bias = family.norm_biases;
  layer.norm.zero_centered_gamma = family.zero_centered;
  layer.hidden_dropout = layer.attention_dropout = 0;
  options->learned_positions = family.positions == HfPositions::kLearned;
  options->output_bias = family.output_bias;
  options->tied_embeddings = fields.Bool("tie_word_embeddings", family.tied);
  if (family.mixers == HfMixers::kMamba2) return ReadMamba2(family, fields, options);
  layer.ffn_hidden_size =
      family.ffn_multiple > 0
          ? fields.Size(family.ffn_key, kMaxHfWidth, family.ffn_multiple * layer.hidden_size)
          : fields.Size(family.ffn_key, kMaxHfWidth);
  layer.qk_norm = family.optional_qk_norm ? fields.Bool(family.qk_norm_key, false) : family.qk_norm;
  layer.qk_norm_each_head = layer.qk_norm && family.head_gains != HfHeadGains::kShared;
  layer.qk_norm_all_heads = family.qk_norm_all_heads;
  layer.reordered_norm = family.reordered_norm;
  layer.sandwich_norm = family.sandwich_norm;
  layer.output_gate = family.output_gate;
  layer.sink = family.sinks ? AttentionSink::kLearned : AttentionSink::kNone;
  layer.norm.epsilon = static_cast<float>(fields.Number(family.epsilon_key, 0, 1, family.epsilon));
  if (family.is_latent()) {
    ReadLatents(fields, &layer);
  } else {
    ReadHeads(family, fields, &layer);
  }
  // A file of few bytes must not cost the memory of a great table of tensors.
  constexpr int64_t kMaxHeadsOfAllLayers = 1 << 16;
  if (layer.qk_norm && family.head_gains == HfHeadGains::kTensors &&
      layer.num_layers * layer.num_attention_heads > kMaxHeadsOfAllLayers)
    fields.Error(family.sizes.heads, "all layers have too many together");
  layer.rotary = ReadRotates(family, fields);
  if (layer.rotary) {
    ReadRope(family, fields, &layer.rotary_options);
    ReadShareOfRotation(family, fields, &layer);
    if (family.interleaved) layer.rotary_options.interleaved = true;
    if (family.rotated_layers == HfRotatedLayers::kListed) ReadRotatedLayers(fields, &layer);
  }
  ReadGate(family, fields, &layer);
  ReadBiases(family, fields, &layer);
  ReadBranches(family, fields, &layer);
  options->max_positions =
      family.max_positions > 0
          ? fields.Size(family.sizes.positions, kMaxHfIds, family.max_positions)
          : fields.Size(family.sizes.positions, kMaxHfIds);
  for (const char* key : {"rope_scaling", "rope_parameters"})
    ReadLongRope(family, fields, key, options);
  ReadWindow(family, fields, options->max_positions, &layer);
  ReadHfExperts(family, fields, &layer);
  layer.attention_dropout = HfDropout(fields, family.attention_dropout_key, family.dropout);
  if (family.dropout_key != nullptr)
    layer.hidden_dropout = HfDropout(fields, family.dropout_key, family.dropout);
  if (family.embedding_dropout_key != nullptr) {
    CheckHfEmbeddingDropout(fields, family.embedding_dropout_key, family.dropout,
                            family.dropout_key, layer.hidden_dropout);
  }
  ReadHfMixers(family, fields, &layer);
  if (family.multipliers) ReadMultipliers(fields, options);
  if (family.logit_scale)
    options->output_scale = static_cast<float>(fields.Number("logit_scale", 1e-6, 1e6, 0.0625));
  if (family.gemma) ReadGemma(family, fields, options);
  if (family.qk_norm_all_heads && fields.Has("clip_qkv"))
    fields.Error("clip_qkv", "queries, keys and values are not clipped here");
  if (family.is_latent()) layer.softmax_scale = LatentSoftmaxScale(layer);
}

}  // namespace megatron
