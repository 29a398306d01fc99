#include "megatron/models/huggingface/hf_experts.h"

#include <algorithm>
#include <string>
#include <vector>

#include "megatron/models/huggingface/hf_mixers.h"

namespace megatron {
namespace {

constexpr int64_t kMaxExperts = 1024;
// More than any model has; each is several tensors, which cost memory.
constexpr int64_t kMaxExpertsOfAllLayers = int64_t{1} << 17;

// Returns which layers have experts.
std::vector<bool> ReadLayersWithExperts(const HfFields& fields, int64_t num_layers) {
  const int64_t step = fields.Size("decoder_sparse_step", kMaxHfLayers, 1);
  std::vector<bool> layers(static_cast<size_t>(num_layers));
  for (size_t i = 0; i < layers.size(); ++i) layers[i] = static_cast<int64_t>(i + 1) % step == 0;
  if (!fields.Has("mlp_only_layers")) return layers;
  const HfJson& dense = fields.Get("mlp_only_layers");
  bool holds = dense.is_array();
  for (const HfJson& number : holds ? dense : HfJson::array()) {
    const bool is_layer = number.is_number_unsigned() && number.get<uint64_t>() < layers.size();
    holds &= is_layer;
    if (is_layer) layers[number.get<size_t>()] = false;
  }
  if (!holds) fields.Error("mlp_only_layers", "must be a list of numbers of layers");
  return layers;
}

// Says which experts a token goes to.
void ReadDeepSeekRouter(const HfDecoder& family, const HfFields& fields, MoeOptions* moe) {
  const bool v3 = family.experts == HfExperts::kDeepSeekV3;
  ops::Router& router = moe->router;
  router.scaling_factor =
      static_cast<float>(fields.Number("routed_scaling_factor", 1e-6, 1e6, family.routed_scale));
  int64_t groups = fields.Size("n_group", kMaxExperts, family.expert_groups);
  const int64_t group_topk = fields.Size("topk_group", 32, family.chosen_groups);
  const std::string method = fields.Text("topk_method", v3 ? "noaux_tc" : "greedy");
  const std::string scores = fields.Text("scoring_func", v3 ? "sigmoid" : "softmax");
  if (scores != (v3 ? "sigmoid" : "softmax"))
    fields.Error("scoring_func", v3 ? "must be sigmoid" : "must be softmax");
  if (v3) {
    router.score = ops::RouterScore::kSigmoid;
    moe->expert_bias = true;
    if (!fields.Bool("norm_topk_prob", family.normalized_scores)) {
      fields.Error("norm_topk_prob",
                   "must be true: the chosen experts' scores are divided by their sum");
    }
    if (method != "noaux_tc") fields.Error("topk_method", "must be noaux_tc");
    if (router.topk < 2) fields.Error("num_experts_per_tok", "must be at least 2");
  } else {
    router.pre_softmax = true;
    fields.Refuse("norm_topk_prob", true, "probabilities are those of all experts here");
    if (method == "greedy") groups = 1;
    if (method != "greedy" && method != "group_limited_greedy")
      fields.Error("topk_method", "must be greedy or group_limited_greedy");
  }
  if (groups == 1 || group_topk == groups) return;
  router.num_groups = static_cast<int>(groups);
  router.group_topk = static_cast<int>(group_topk);
  router.group_score_topk = v3 ? 2 : 1;
  const int64_t of_group = moe->num_experts / groups;
  if (moe->num_experts % groups != 0 || group_topk > groups || of_group < router.group_score_topk ||
      of_group * group_topk < router.topk) {
    fields.Error("topk_group", "the groups are not equal, or the chosen ones have too few experts");
  }
}

void ReadDeepSeekExperts(const HfDecoder& family, const HfFields& fields,
                         TransformerOptions* layer) {
  MoeOptions& moe = layer->moe;
  moe.num_experts = fields.Size("n_routed_experts", kMaxExperts);
  moe.router.topk = static_cast<int>(fields.Size("num_experts_per_tok", 32));
  moe.balance = BalanceUnit::kNone;
  if (moe.num_experts < 2 || moe.router.topk > moe.num_experts)
    fields.Error("num_experts_per_tok", "must be at most the number of experts, at least two");
  moe.ffn_hidden_size = fields.Size("moe_intermediate_size", kMaxHfHeads);
  moe.shared_ffn_hidden_size = fields.Size("n_shared_experts", 64) * moe.ffn_hidden_size;
  const auto dense = static_cast<int64_t>(fields.Number("first_k_dense_replace", 0, kMaxHfLayers,
                                                        static_cast<double>(family.dense_layers)));
  if (fields.Number("moe_layer_freq", 0, kMaxHfLayers, 1) != 1)
    fields.Error("moe_layer_freq", "must be 1");
  if (dense >= layer->num_layers) fields.Error("first_k_dense_replace", "no layer has experts");
  if (dense > 0) moe.layers.assign(static_cast<size_t>(layer->num_layers), true);
  for (int64_t i = 0; i < std::min(dense, layer->num_layers); ++i)
    moe.layers[static_cast<size_t>(i)] = false;
  if ((layer->num_layers - dense) * moe.num_experts > kMaxExpertsOfAllLayers)
    fields.Error("n_routed_experts", "all layers have too many together");
  ReadDeepSeekRouter(family, fields, &moe);
}

// The width of Granite's shared expert; 0 if there is none.
int64_t ReadGraniteShared(const HfDecoder& family, const HfFields& fields) {
  constexpr char kShared[] = "shared_intermediate_size";
  if (family.experts == HfExperts::kGranite) return fields.Size(kShared, kMaxHfWidth);
  if (family.experts == HfExperts::kGraniteMoe || !fields.Has(kShared)) return 0;
  return fields.Get(kShared) == 0 ? 0 : fields.Size(kShared, kMaxHfWidth);
}

// In hybrids the shared expert is the MLP where there are no others.
void ReadGraniteExperts(const HfDecoder& family, const HfFields& fields,
                        TransformerOptions* layer) {
  MoeOptions& moe = layer->moe;
  const int64_t shared = ReadGraniteShared(family, fields);
  moe.num_experts = static_cast<int64_t>(fields.Number("num_local_experts", 0, kMaxExperts, 8));
  if (family.is_hybrid() && moe.num_experts == 0) {
    layer->ffn_hidden_size = shared;
    return;
  }
  moe.shared_ffn_hidden_size = shared;
  moe.ffn_hidden_size = layer->ffn_hidden_size;
  moe.balance = BalanceUnit::kNone;
  moe.router.topk = static_cast<int>(fields.Size("num_experts_per_tok", 32));
  if (moe.num_experts < 2 || moe.router.topk > moe.num_experts)
    fields.Error("num_experts_per_tok", "must be at most the number of experts, at least two");
  if (layer->num_layers * moe.num_experts > kMaxExpertsOfAllLayers)
    fields.Error("num_local_experts", "all layers have too many together");
}

// Returns the number of first layers without experts; -1 if there are others, too.
int64_t DenseLayers(const TransformerOptions& layer) {
  int64_t dense = 0;
  while (dense < layer.num_layers && !layer.moe.IsMoeLayer(dense)) ++dense;
  for (int64_t i = dense; i < layer.num_layers; ++i) {
    if (!layer.moe.IsMoeLayer(i)) return -1;
  }
  return dense;
}

// Returns whether all layers have experts that could have them.
bool HasExpertsThroughout(const TransformerOptions& layer) {
  for (int64_t i = 0; i < layer.num_layers; ++i) {
    if (layer.HasMlp(i) && !layer.moe.IsMoeLayer(i)) return false;
  }
  return true;
}

// The number of scores of its experts that are a group's.
int ScoresOfGroup(const ops::Router& router) {
  return router.group_score_topk > 0 ? router.group_score_topk : router.topk / router.group_topk;
}

void CheckDeepSeekExperts(const HfDecoder& family, const TransformerOptions& layer,
                          const HfRequirements& require) {
  const MoeOptions& moe = layer.moe;
  const ops::Router& router = moe.router;
  const bool v3 = family.experts == HfExperts::kDeepSeekV3;
  require(DenseLayers(layer) >= 0, "moe_layer_freq", "first layers without experts, and then all");
  require(moe.shared_ffn_hidden_size > 0 && !moe.shared_expert_gate &&
              moe.shared_ffn_hidden_size % moe.ffn_hidden_size == 0,
          "moe_shared_expert_intermediate_size",
          "a shared expert as wide as several experts, without a gate");
  if (!v3) {
    require(
        router.score == ops::RouterScore::kSoftmax && router.pre_softmax && !router.choose_by_logit,
        "moe_router_score_function, or no moe_router_pre_softmax,", "softmax over all experts");
    require(router.num_groups == 1 || ScoresOfGroup(router) == 1,
            "moe_router_group_score_topk other than 1",
            "groups that are chosen by their best expert");
    return require(!moe.expert_bias, "moe_router_enable_expert_bias", "no such bias");
  }
  require(router.score == ops::RouterScore::kSigmoid && !router.choose_by_logit,
          "moe_router_score_function", "sigmoid");
  require(router.topk >= 2, "moe_router_topk: 1", "two and more");
  require(router.num_groups == 1 || ScoresOfGroup(router) == 2,
          "moe_router_group_score_topk other than 2", "groups that are chosen by their two best");
}

void WriteDeepSeekExperts(const HfDecoder& family, const TransformerOptions& layer,
                          HfJson* config) {
  const MoeOptions& moe = layer.moe;
  const bool v3 = family.experts == HfExperts::kDeepSeekV3;
  const bool groups = moe.router.num_groups > 1;
  config->update({{"n_routed_experts", moe.num_experts},
                  {"num_experts_per_tok", moe.router.topk},
                  {"moe_intermediate_size", moe.ffn_hidden_size},
                  {"n_shared_experts", moe.shared_ffn_hidden_size / moe.ffn_hidden_size},
                  {"first_k_dense_replace", DenseLayers(layer)},
                  {"routed_scaling_factor", ShortestDouble(moe.router.scaling_factor)},
                  {"norm_topk_prob", v3},
                  {"scoring_func", v3 ? "sigmoid" : "softmax"},
                  {"topk_method", v3       ? "noaux_tc"
                                  : groups ? "group_limited_greedy"
                                           : "greedy"},
                  {"n_group", moe.router.num_groups},
                  {"topk_group", moe.router.group_topk}});
  if (v3 && family.is_latent()) (*config)["rope_interleave"] = true;
}

}  // namespace

void ReadHfExperts(const HfDecoder& family, const HfFields& fields, TransformerOptions* layer) {
  if (family.experts == HfExperts::kNone) return;
  if (family.is_granite()) return ReadGraniteExperts(family, fields, layer);
  if (family.is_deepseek()) return ReadDeepSeekExperts(family, fields, layer);
  const bool qwen = family.experts == HfExperts::kQwen, olmoe = family.experts == HfExperts::kOlmoe;
  const char* const number = qwen || olmoe ? "num_experts" : "num_local_experts";
  MoeOptions& moe = layer->moe;
  moe.num_experts = fields.Size(number, kMaxExperts);
  moe.router.topk = static_cast<int>(fields.Size("num_experts_per_tok", 32));
  moe.balance = BalanceUnit::kNone;
  if (moe.num_experts < 2 || moe.router.topk > moe.num_experts)
    fields.Error("num_experts_per_tok", "must be at most the number of experts, at least two");
  moe.ffn_hidden_size =
      qwen ? fields.Size("moe_intermediate_size", kMaxHfWidth) : layer->ffn_hidden_size;
  if (qwen || olmoe) moe.router.pre_softmax = !fields.Bool("norm_topk_prob", family.is_hybrid());
  int64_t with = layer->num_layers;
  if (qwen) {
    moe.layers = ReadLayersWithExperts(fields, layer->num_layers);
    with = std::count(moe.layers.begin(), moe.layers.end(), true);
    if (with == layer->num_layers) moe.layers.clear();
  }
  if (family.gated_shared_expert) {
    moe.shared_ffn_hidden_size = fields.Size("shared_expert_intermediate_size", kMaxHfWidth);
    moe.shared_expert_gate = true;
  }
  if (with == 0) fields.Error("mlp_only_layers", "no layer has experts");
  if (with * moe.num_experts > kMaxExpertsOfAllLayers)
    fields.Error(number, "all layers have too many together");
}

void CheckHfExperts(const HfDecoder& family, const TransformerOptions& layer,
                    const HfRequirements& require) {
  const MoeOptions& moe = layer.moe;
  if (family.experts == HfExperts::kNone)
    return require(moe.num_experts == 0, "num_experts", "no experts");
  if (moe.num_experts == 0)
    return require(family.experts == HfExperts::kGranite, "no num_experts", "experts");
  require(!moe.capacity_factor.has_value(), "moe_expert_capacity_factor",
          "experts that take all tokens");
  if (family.is_deepseek()) return CheckDeepSeekExperts(family, layer, require);
  const bool qwen = family.experts == HfExperts::kQwen;
  const bool olmoe = family.experts == HfExperts::kOlmoe;
  require(qwen || HasExpertsThroughout(layer), "moe_layer_freq", "experts in all layers");
  const bool granite = family.experts == HfExperts::kGranite;
  require(qwen || family.is_hybrid() || moe.ffn_hidden_size == layer.ffn_hidden_size,
          "moe_ffn_hidden_size other than ffn_hidden_size", "one width");
  const bool gate = family.gated_shared_expert, shared = gate || granite;
  const bool optional = family.experts == HfExperts::kGraniteMoeShared;
  require(
      (optional || (moe.shared_ffn_hidden_size > 0) == shared) && moe.shared_expert_gate == gate,
      "moe_shared_expert_intermediate_size and moe_shared_expert_gate",
      gate                 ? "both"
      : shared || optional ? "a shared expert without a gate"
                           : "no shared expert");
  const ops::Router& router = moe.router;
  require(router.score == ops::RouterScore::kSoftmax && !router.choose_by_logit,
          "moe_router_score_function, or sinkhorn,", "softmax");
  require(qwen || olmoe || !router.pre_softmax, "moe_router_pre_softmax",
          "softmax over the chosen experts");
  require(router.scaling_factor == 1, "moe_router_topk_scaling_factor", "none");
  require(router.num_groups == 1, "moe_router_num_groups", "no groups of experts");
  require(!moe.expert_bias, "moe_router_enable_expert_bias", "no such bias");
}

void WriteHfExperts(const HfDecoder& family, const TransformerOptions& layer, HfJson* config) {
  if (family.experts == HfExperts::kGranite) {
    (*config)["shared_intermediate_size"] =
        layer.moe.num_experts > 0 ? layer.moe.shared_ffn_hidden_size : layer.ffn_hidden_size;
    if (layer.moe.num_experts > 0) (*config)["intermediate_size"] = layer.moe.ffn_hidden_size;
  }
  if (family.experts == HfExperts::kGraniteMoeShared)
    (*config)["shared_intermediate_size"] = layer.moe.shared_ffn_hidden_size;
  if (family.is_deepseek()) return WriteDeepSeekExperts(family, layer, config);
  const MoeOptions& moe = layer.moe;
  const bool qwen = family.experts == HfExperts::kQwen, olmoe = family.experts == HfExperts::kOlmoe;
  config->update({{qwen || olmoe ? "num_experts" : "num_local_experts", moe.num_experts},
                  {"num_experts_per_tok", moe.router.topk},
                  {"router_aux_loss_coef", ShortestDouble(moe.aux_loss_coeff)},
                  {"output_router_logits", false}});
  if (qwen || olmoe) (*config)["norm_topk_prob"] = !moe.router.pre_softmax;
  if (!qwen) return;
  HfJson dense = HfJson::array();
  const int64_t layers = HfLayers(family, layer), each = layer.num_layers / layers;
  for (int64_t i = 0; i < layers; ++i) {
    if (!moe.IsMoeLayer(i * each + each - 1)) dense.push_back(i);
  }
  config->update({{"moe_intermediate_size", moe.ffn_hidden_size},
                  {"decoder_sparse_step", 1},
                  {"mlp_only_layers", dense}});
  if (family.gated_shared_expert)
    (*config)["shared_expert_intermediate_size"] = moe.shared_ffn_hidden_size;
}

}  // namespace megatron
