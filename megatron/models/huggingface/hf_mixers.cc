#include "megatron/models/huggingface/hf_mixers.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace megatron {
namespace {

// The names of the sizes of a Mamba-2 mixer.
struct MambaNames {
  const char *heads, *head_dim, *groups, *state, *expand, *taps, *conv_bias, *bias;
};

constexpr MambaNames kMamba2Names = {"num_heads", "head_dim",    "n_groups",      "state_size",
                                     "expand",    "conv_kernel", "use_conv_bias", "use_bias"};
constexpr MambaNames kHybridNames = {"mamba_n_heads",   "mamba_d_head",   "mamba_n_groups",
                                     "mamba_d_state",   "mamba_expand",   "mamba_d_conv",
                                     "mamba_conv_bias", "mamba_proj_bias"};

const MambaNames& NamesOf(const HfDecoder& family) {
  return family.mixers == HfMixers::kMamba2 ? kMamba2Names : kHybridNames;
}

HybridLayer MixerOf(const HfDecoder& family) {
  return family.mixers == HfMixers::kQwen3Next ? HybridLayer::kDelta : HybridLayer::kMamba;
}

// The name of a layer with the family's mixer in layer_types.
const char* TypeOfMixer(const HfDecoder& family) {
  return family.mixers == HfMixers::kQwen3Next ? "linear_attention" : "mamba";
}
const char* TypeOfAttention(const HfDecoder& family) {
  return family.mixers == HfMixers::kQwen3Next ? "full_attention" : "attention";
}

// Returns which of the layers there have attention.
std::vector<bool> LayersWithAttention(const HfDecoder& family, const HfFields& fields,
                                      int64_t num_layers) {
  std::vector<bool> layers(static_cast<size_t>(num_layers));
  if (family.mixers == HfMixers::kQwen3Next) {
    const int64_t interval = fields.Size("full_attention_interval", kMaxHfLayers, 4);
    for (size_t i = 0; i < layers.size(); ++i)
      layers[i] = static_cast<int64_t>(i + 1) % interval == 0;
  }
  if (family.mixers != HfMixers::kBamba)
    return fields.LayersOfType(TypeOfAttention(family), TypeOfMixer(family), layers);
  if (!fields.Has("attn_layer_indices")) return layers;
  const HfJson& with = fields.Get("attn_layer_indices");
  bool holds = with.is_array();
  for (const HfJson& number : holds ? with : HfJson::array()) {
    const bool is_layer = number.is_number_unsigned() && number.get<uint64_t>() < layers.size();
    holds &= is_layer;
    if (is_layer) layers[number.get<size_t>()] = true;
  }
  if (!holds) fields.Error("attn_layer_indices", "must be a list of numbers of layers");
  return layers;
}

// Checks that a step of a Mamba-2 mixer may be as long as it likes. JSON has no infinity: where a
// file spells one, it is null here.
void CheckSteps(const HfFields& fields) {
  if (!fields.Has("time_step_limit")) return;
  const HfJson& limit = fields.Get("time_step_limit");
  if (limit.is_array() && limit.size() == 2 && limit[0] == 0 && limit[1].is_null()) return;
  fields.Error("time_step_limit", "must be [0.0, Infinity]: steps have no limits here");
}

void ReadMamba(const HfDecoder& family, const HfFields& fields, TransformerOptions* layer) {
  const MambaNames& names = NamesOf(family);
  MambaOptions& mamba = layer->mamba;
  mamba.state_dim = fields.Size(names.state, 1024);
  mamba.num_groups = fields.Size(names.groups, kMaxHfHeads);
  mamba.norm_all_groups = mamba.num_groups > 1;
  mamba.num_heads = fields.Size(names.heads, kMaxHfHeads);
  if (mamba.num_heads % mamba.num_groups != 0) {
    fields.Error(names.groups, absl::StrCat("must divide ", names.heads));
    mamba.num_groups = 1;
  }
  const double expand = fields.Number(names.expand, 1e-6, 1e6, 2);
  const auto inner = static_cast<int64_t>(expand * static_cast<double>(layer->hidden_size));
  const bool is_computed = fields.Has(names.head_dim) && fields.Get(names.head_dim) == "auto";
  mamba.head_dim = is_computed ? std::max<int64_t>(1, inner / mamba.num_heads)
                               : fields.Size(names.head_dim, 1024);
  if (mamba.head_dim > 1024 || mamba.num_heads * mamba.head_dim != inner ||
      inner % layer->hidden_size != 0) {
    fields.Error(names.heads,
                 absl::StrCat("times ", names.head_dim, " must be a multiple of hidden_size, as ",
                              names.expand, " says"));
  }
  if (fields.Size(names.taps, kMaxHfHeads, 4) != 4)
    fields.Error(names.taps, "must be 4: the convolution sees four tokens here");
  fields.Refuse(names.conv_bias, false, "the convolution has biases here");
  fields.Refuse(names.bias, true, "the projections of a mixer have no biases here");
  CheckSteps(fields);
  fields.Refuse("rms_norm", false, "what a mixer gives is normalized here");
}

void ReadDelta(const HfFields& fields, TransformerOptions* layer) {
  DeltaOptions& delta = layer->delta;
  delta.conv_taps = fields.Size("linear_conv_kernel_dim", 16);
  delta.key_head_dim = fields.Size("linear_key_head_dim", 1024);
  delta.value_head_dim = fields.Size("linear_value_head_dim", 1024);
  delta.num_key_heads = fields.Size("linear_num_key_heads", kMaxHfHeads);
  delta.num_value_heads = fields.Size("linear_num_value_heads", kMaxHfHeads);
  if (delta.num_value_heads % delta.num_key_heads != 0)
    fields.Error("linear_num_key_heads", "does not divide linear_num_value_heads");
  const int64_t widest = std::max(delta.num_key_heads * delta.key_head_dim,
                                  delta.num_value_heads * delta.value_head_dim);
  if (widest > kMaxHfWidth)
    fields.Error("linear_num_value_heads", "all heads are too large together");
}

// Returns whether each mixer has an MLP or experts behind it.
bool Alternates(const HfDecoder& family, const TransformerOptions& layer) {
  bool alternates = layer.num_layers % 2 == 0;
  for (int64_t i = 0; i < layer.num_layers; ++i) {
    const HybridLayer kind = layer.hybrid_layers[i];
    alternates &= i % 2 == 1 ? kind == HybridLayer::kMlp
                             : kind == HybridLayer::kAttention || kind == MixerOf(family);
  }
  return alternates;
}

void WriteMamba(const HfDecoder& family, const TransformerOptions& layer, HfJson* config) {
  const MambaNames& names = NamesOf(family);
  MambaOptions mamba = layer.mamba;
  // Where no layer has a mixer, these are any sizes that are accepted there.
  if (!HasHybridLayer(layer, HybridLayer::kMamba)) mamba = {128, layer.hidden_size, 1, 1};
  config->update({{names.heads, mamba.num_heads},
                  {names.head_dim, mamba.head_dim},
                  {names.groups, mamba.num_groups},
                  {names.state, mamba.state_dim},
                  {names.expand, mamba.num_heads * mamba.head_dim / layer.hidden_size},
                  {names.taps, 4},
                  {names.conv_bias, true},
                  {names.bias, false}});
}

void WriteDelta(const TransformerOptions& layer, HfJson* config) {
  const DeltaOptions delta =
      HasHybridLayer(layer, HybridLayer::kDelta) ? layer.delta : DeltaOptions();
  config->update({{"linear_conv_kernel_dim", delta.conv_taps},
                  {"linear_key_head_dim", delta.key_head_dim},
                  {"linear_value_head_dim", delta.value_head_dim},
                  {"linear_num_key_heads", delta.num_key_heads},
                  {"linear_num_value_heads", delta.num_value_heads}});
}

}  // namespace

int64_t HfLayers(const HfDecoder& family, const TransformerOptions& layer) {
  const bool are_pairs = family.is_hybrid() && family.mixers != HfMixers::kMamba2;
  return are_pairs ? layer.num_layers / 2 : layer.num_layers;
}

bool HasHybridLayer(const TransformerOptions& layer, HybridLayer kind) {
  return std::count(layer.hybrid_layers.begin(), layer.hybrid_layers.end(), kind) > 0;
}

void ReadHfMixers(const HfDecoder& family, const HfFields& fields, TransformerOptions* layer) {
  if (!family.is_hybrid()) return;
  const auto num_layers = static_cast<size_t>(layer->num_layers);
  if (family.mixers == HfMixers::kMamba2) {
    layer->hybrid_layers.assign(num_layers, HybridLayer::kMamba);
    return ReadMamba(family, fields, layer);
  }
  const std::vector<bool> has_attention = LayersWithAttention(family, fields, layer->num_layers);
  std::vector<bool> has_experts;
  for (size_t i = 0; i < num_layers; ++i) {
    layer->hybrid_layers.push_back(has_attention[i] ? HybridLayer::kAttention : MixerOf(family));
    layer->hybrid_layers.push_back(HybridLayer::kMlp);
    has_experts.push_back(false);
    has_experts.push_back(layer->moe.IsMoeLayer(static_cast<int64_t>(i)));
  }
  if (layer->moe.num_experts > 0) layer->moe.layers = has_experts;
  layer->num_layers *= 2;
  if (HasHybridLayer(*layer, HybridLayer::kMamba)) ReadMamba(family, fields, layer);
  if (HasHybridLayer(*layer, HybridLayer::kDelta)) ReadDelta(fields, layer);
}

void CheckHfMixers(const HfDecoder& family, const TransformerOptions& layer,
                   const HfRequirements& require) {
  if (!family.is_hybrid()) {
    return require(!layer.is_hybrid(), "hybrid_layer_pattern",
                   "layers of attention and an MLP each");
  }
  if (!layer.is_hybrid()) return require(false, "no hybrid_layer_pattern", "layers of its own");
  if (family.mixers == HfMixers::kMamba2) {
    require(std::count(layer.hybrid_layers.begin(), layer.hybrid_layers.end(),
                       HybridLayer::kMamba) == layer.num_layers,
            "hybrid_layer_pattern", "layers M alone");
  } else {
    require(Alternates(family, layer), "hybrid_layer_pattern",
            absl::StrCat("layers * and ", MixerOf(family) == HybridLayer::kDelta ? "G" : "M",
                         ", each with a layer - or E behind it"));
  }
  require(family.mixers != HfMixers::kQwen3Next || HasHybridLayer(layer, HybridLayer::kAttention),
          "hybrid_layer_pattern without *", "attention in some layer");
  if (!HasHybridLayer(layer, HybridLayer::kMamba)) return;
  require(layer.mamba.num_groups == 1 || layer.mamba.norm_all_groups, "no mamba_norm_all_groups",
          "a norm of all groups together");
  require(layer.mamba.num_heads * layer.mamba.head_dim % layer.hidden_size == 0, "mamba_num_heads",
          "heads whose channels are a multiple of hidden_size");
}

void WriteHfMixers(const HfDecoder& family, const TransformerOptions& layer, HfJson* config) {
  if (!family.is_hybrid()) return;
  if (family.mixers == HfMixers::kQwen3Next) {
    WriteDelta(layer, config);
  } else {
    WriteMamba(family, layer, config);
  }
  if (family.mixers == HfMixers::kMamba2) return;
  HfJson types = HfJson::array(), numbers = HfJson::array();
  for (int64_t i = 0; i < layer.num_layers; i += 2) {
    const bool attends = layer.hybrid_layers[i] == HybridLayer::kAttention;
    types.push_back(attends ? TypeOfAttention(family) : TypeOfMixer(family));
    if (attends) numbers.push_back(i / 2);
  }
  if (family.mixers == HfMixers::kBamba) {
    (*config)["attn_layer_indices"] = numbers;
  } else {
    (*config)["layer_types"] = types;
  }
}

}  // namespace megatron
