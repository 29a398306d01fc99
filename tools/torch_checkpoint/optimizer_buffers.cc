#include "tools/torch_checkpoint/optimizer_buffers.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "glog/logging.h"
#include "megatron/base/round_up.h"
#include "megatron/base/status_macros.h"
#include "megatron/comm/process_group.h"
#include "megatron/models/make_stage.h"
#include "megatron/models/model_stage.h"
#include "megatron/tensor/dtype.h"
#include "megatron/tensor/parameter.h"
#include "tools/common/interrupt.h"

namespace megatron {
namespace {

constexpr absl::string_view kBuffers = "optimizer.distributed.dp_group_idx_";
constexpr absl::string_view kMaster = "fp32_param";
// The states of a bucket, as they are called there.
constexpr absl::string_view kStates[] = {"param", "exp_avg", "exp_avg_sq"};
constexpr int64_t kAlignment = 64;  // of parameters, in elements
constexpr absl::string_view kFirstOfExperts = "mlp.experts.experts.linear_fc1.weight";

// The parameters of a layer in the order in which Megatron's modules register them. With
// Transformer Engine norms belong to the linear layers behind them; else they are modules.
constexpr absl::string_view kOfTransformerEngine[] = {
    "input_layernorm.weight",
    "input_layernorm.bias",
    "self_attention.core_attention.softmax_offset",
    "self_attention.linear_proj.weight",
    "self_attention.linear_proj.bias",
    "self_attention.linear_q_proj.weight",
    "self_attention.linear_q_down_proj.weight",
    "self_attention.linear_q_up_proj.layer_norm_weight",
    "self_attention.linear_q_up_proj.layer_norm_bias",
    "self_attention.linear_q_up_proj.weight",
    "self_attention.linear_kv_down_proj.weight",
    "self_attention.linear_kv_up_proj.layer_norm_weight",
    "self_attention.linear_kv_up_proj.layer_norm_bias",
    "self_attention.linear_kv_up_proj.weight",
    "self_attention.linear_qkv.layer_norm_weight",
    "self_attention.linear_qkv.layer_norm_bias",
    "self_attention.linear_qkv.weight",
    "self_attention.linear_qkv.bias",
    "self_attention.q_layernorm.weight",
    "self_attention.q_layernorm.bias",
    "self_attention.k_layernorm.weight",
    "self_attention.k_layernorm.bias",
    "mlp.linear_fc1.layer_norm_weight",
    "mlp.linear_fc1.layer_norm_bias",
    "mlp.linear_fc1.weight",
    "mlp.linear_fc1.bias",
    "mlp.linear_fc2.weight",
    "mlp.linear_fc2.bias",
    "pre_mlp_layernorm.weight",
    "pre_mlp_layernorm.bias",
    "mlp.router.weight",
    "mlp.router.bias",
    kFirstOfExperts,
    "mlp.experts.experts.linear_fc1.bias",
    "mlp.experts.experts.linear_fc2.weight",
    "mlp.experts.experts.linear_fc2.bias",
    // A module's own parameters come before those of the modules in it.
    "mlp.shared_experts.gate_weight",
    "mlp.shared_experts.linear_fc1.weight",
    "mlp.shared_experts.linear_fc2.weight",
};
constexpr absl::string_view kOfLocal[] = {
    "input_layernorm.weight",
    "input_layernorm.bias",
    "self_attention.linear_qkv.layer_norm_weight",
    "self_attention.linear_qkv.layer_norm_bias",
    "self_attention.core_attention.softmax_offset",
    "self_attention.linear_proj.weight",
    "self_attention.linear_proj.bias",
    "self_attention.linear_q_proj.weight",
    "self_attention.linear_q_down_proj.weight",
    "self_attention.linear_q_up_proj.layer_norm_weight",
    "self_attention.linear_q_up_proj.layer_norm_bias",
    "self_attention.linear_q_up_proj.weight",
    "self_attention.linear_kv_down_proj.weight",
    "self_attention.linear_kv_up_proj.layer_norm_weight",
    "self_attention.linear_kv_up_proj.layer_norm_bias",
    "self_attention.linear_kv_up_proj.weight",
    "self_attention.linear_qkv.weight",
    "self_attention.linear_qkv.bias",
    "self_attention.q_layernorm.weight",
    "self_attention.q_layernorm.bias",
    "self_attention.k_layernorm.weight",
    "self_attention.k_layernorm.bias",
    "mlp.linear_fc1.layer_norm_weight",
    "mlp.linear_fc1.layer_norm_bias",
    "mlp.linear_fc1.weight",
    "mlp.linear_fc1.bias",
    "mlp.linear_fc2.weight",
    "mlp.linear_fc2.bias",
    "pre_mlp_layernorm.weight",
    "pre_mlp_layernorm.bias",
    "mlp.router.weight",
    "mlp.router.bias",
    kFirstOfExperts,
    "mlp.experts.experts.linear_fc1.bias",
    "mlp.experts.experts.linear_fc2.weight",
    "mlp.experts.experts.linear_fc2.bias",
    // A module's own parameters come before those of the modules in it.
    "mlp.shared_experts.gate_weight",
    "mlp.shared_experts.linear_fc1.weight",
    "mlp.shared_experts.linear_fc2.weight",
};

// Says what to do with a checkpoint whose buffers are not read.
std::string Otherwise(absl::string_view what) {
  return absl::StrCat(
      "the optimizer's states are in buffers of many parameters (dp_reshardable), and ", what,
      "; Megatron-LM itself loads this checkpoint in its layout and saves it by parameter with "
      "--dist-ckpt-optim-fully-reshardable");
}

absl::Status Unknown(absl::string_view what) { return absl::InvalidArgumentError(Otherwise(what)); }

absl::Status Broken(absl::string_view what) { return absl::DataLossError(Otherwise(what)); }

// The name of a bucket's tensor:
// "optimizer.distributed.dp_group_idx_1.gbuf_idx_0.dtype_(...).bucket_idx_2.exp_avg".
// With several optimizers "chained_1." or the like stands in front.
struct BucketName {
  int64_t optimizer = 0, rank = 0, chunk = 0, bucket = 0;
  std::string state;
};

bool TakeNumber(absl::string_view* text, int64_t* number) {
  size_t digits = 0;
  while (digits < text->size() && absl::ascii_isdigit(static_cast<unsigned char>((*text)[digits])))
    ++digits;
  if (!absl::SimpleAtoi(text->substr(0, digits), number)) return false;
  text->remove_prefix(digits);
  return true;
}

std::optional<BucketName> ParseBucketName(absl::string_view text) {
  constexpr absl::string_view kBucket = ".bucket_idx_";
  BucketName name;
  if (absl::ConsumePrefix(&text, "chained_") &&
      (!TakeNumber(&text, &name.optimizer) || !absl::ConsumePrefix(&text, ".")))
    return std::nullopt;
  if (!absl::ConsumePrefix(&text, kBuffers) || !TakeNumber(&text, &name.rank) ||
      !absl::ConsumePrefix(&text, ".gbuf_idx_") || !TakeNumber(&text, &name.chunk))
    return std::nullopt;
  const size_t at = text.rfind(kBucket);
  if (at == absl::string_view::npos) return std::nullopt;
  text.remove_prefix(at + kBucket.size());
  if (!TakeNumber(&text, &name.bucket) || !absl::ConsumePrefix(&text, ".")) return std::nullopt;
  name.state = std::string(text);
  return name;
}

// The place of a parameter among those of the model, in the order of Megatron's modules: in which
// part of it, in which layer, in which of the layer's modules, of which expert, and in that module.
using Rank = std::array<int64_t, 5>;

// Returns that of the first expert where the parameter is one of experts. The copy of the word
// table on the last stage is the weight of its output layer.
std::optional<Rank> RankOf(absl::string_view name, bool is_copy,
                           const std::vector<absl::string_view>& of_layer) {
  if (is_copy || name == "output_layer.weight") return Rank{3};
  if (name == "embedding.word_embeddings.weight") return Rank{0};
  if (name == "embedding.position_embeddings.weight") return Rank{0, 0, 1};
  if (name == "decoder.final_layernorm.weight") return Rank{2};
  if (name == "decoder.final_layernorm.bias") return Rank{2, 0, 1};
  Rank rank = {1};
  if (!absl::ConsumePrefix(&name, "decoder.layers.") || !TakeNumber(&name, &rank[1]) ||
      !absl::ConsumePrefix(&name, "."))
    return std::nullopt;
  const auto found = absl::c_find(of_layer, name);
  if (found == of_layer.end()) return std::nullopt;
  rank[2] = found - of_layer.begin();
  return rank;
}

// Returns an error unless the place of each parameter is known and the layout divides the model.
absl::Status CheckLayout(const ModelOptions& model, const MegatronLayout& layout) {
  const auto stage = MakeStage(model, {{DeviceType::kMeta}});
  for (const Parameter* parameter : stage->parameters()) {
    if (!RankOf(parameter->name, /*is_copy=*/false,
                {std::begin(kOfTransformerEngine), std::end(kOfTransformerEngine)})) {
      return Unknown(absl::StrCat("where ", parameter->name, " lies among them is not known here"));
    }
  }
  const TransformerOptions& layer = model.transformer;
  const auto divides = [](int64_t parts, int64_t whole) { return whole % parts == 0; };
  if (!divides(layout.parts(), layer.num_layers)) {
    return Unknown(absl::StrCat(layer.num_layers, " layers are not even over ", layout.stages,
                                " stages of ", layout.chunks, " parts"));
  }
  const MoeOptions& moe = layer.moe;
  bool has_dense = false;
  for (int64_t i = 0; i < layer.num_layers; ++i) has_dense |= !moe.IsMoeLayer(i);
  if (!divides(layout.tensor_parallel, layer.num_query_groups) ||
      (has_dense && !divides(layout.tensor_parallel, layer.ffn_hidden_size)) ||
      !divides(layout.tensor_parallel, moe.shared_ffn_hidden_size) ||
      !divides(layout.tensor_parallel, model.padded_vocab_size)) {
    return Unknown(
        absl::StrCat("the model's groups of queries, MLPs or vocabulary are not even over ",
                     layout.tensor_parallel, " tensor-parallel ranks"));
  }
  if (moe.num_experts == 0) return absl::OkStatus();
  if (!divides(layout.expert_parallel, moe.num_experts) ||
      !divides(layout.expert_tensor_parallel, moe.ffn_hidden_size)) {
    return Unknown(absl::StrCat("the model's experts are not even over ", layout.expert_parallel,
                                " times ", layout.expert_tensor_parallel, " ranks"));
  }
  // Then the dense parameters' optimizer has them too.
  if (layout.expert_parallel == 1 && layout.expert_tensor_parallel != layout.tensor_parallel) {
    return Unknown(
        "experts that all ranks have are shared by others than dense layers, which is not known "
        "here");
  }
  return absl::OkStatus();
}

// Returns whether the master rounds to the weight. Masters that Transformer Engine makes of a
// weight and a remainder round ties away from zero.
bool RoundsTo(float master, float weight, DType dtype) {
  if (std::isnan(master)) return std::isnan(weight);
  if (dtype == DType::kFloat16) return ToFloat(ToFloat16(master)) == weight;
  if (dtype != DType::kBFloat16) return master == weight;
  if (ToFloat(ToBFloat16(master)) == weight) return true;
  uint32_t bits;
  std::memcpy(&bits, &master, sizeof(bits));
  const BFloat16 away = {static_cast<uint16_t>((bits >> 16) + 1)};
  return (bits & 0xffff) == 0x8000 && ToFloat(away) == weight;
}

}  // namespace

struct OptimizerBuffers::Local {
  Rank rank = {};
  const Parameter* parameter = nullptr;
  Rectangle block;  // of the parameter
};

bool OptimizerBuffers::AreIn(const DcpWeights& checkpoint) {
  return absl::c_any_of(checkpoint.Names(),
                        [](const std::string& name) { return absl::StrContains(name, kBuffers); });
}

absl::Status OptimizerBuffers::ReadBuckets() {
  std::map<Place, std::map<int64_t, Bucket>> all;
  for (const std::string& name : checkpoint_->Names()) {
    const std::optional<BucketName> parsed = ParseBucketName(name);
    if (!parsed) continue;
    const std::vector<int64_t>& shape = *checkpoint_->ShapeOf(name);
    if (shape.size() != 1) return Broken(absl::StrCat(name, " is no vector"));
    if (absl::c_find(kStates, parsed->state) == std::end(kStates)) {
      return absl::InvalidArgumentError(
          absl::StrCat("the optimizer's state ", parsed->state,
                       " is none of Adam's; only runs with Adam go on here"));
    }
    Bucket& bucket = all[{parsed->optimizer, parsed->rank, parsed->chunk}][parsed->bucket];
    if (!bucket.names.empty() && bucket.size != shape[0])
      return Broken(absl::StrCat(name, " has another size than other states of its bucket"));
    bucket.size = shape[0];
    if (!bucket.names.emplace(parsed->state, name).second)
      return Broken(absl::StrCat(name, " is there for parameters of another type, too"));
  }
  for (auto& [place, numbered] : all) {
    std::vector<Bucket>& buckets = buckets_[place];
    for (auto& [number, bucket] : numbered) {
      const std::string& name = bucket.names.begin()->second;
      if (number != static_cast<int64_t>(buckets.size()))
        return Broken(absl::StrCat("a bucket in front of ", name, " is missing"));
      for (const absl::string_view state : kStates) {
        if (bucket.names.find(state) == bucket.names.end())
          return Broken(absl::StrCat("a bucket has no ", state, ", but ", name));
      }
      buckets.push_back(std::move(bucket));
    }
  }
  return absl::OkStatus();
}

std::vector<OptimizerBuffers::Local> OptimizerBuffers::LocalsOf(const Parameter& parameter,
                                                                const Order& order) {
  const Sharding& sharding = parameter.sharding;
  const std::optional<Rank> rank = RankOf(parameter.name, !parameter.owner, order.of_layer);
  CHECK(rank.has_value()) << parameter.name;
  if (!sharding.expert_grid) return {{*rank, &parameter, {sharding.offset, sharding.local_shape}}};
  const auto first = absl::c_find(order.of_layer, kFirstOfExperts) - order.of_layer.begin();
  const int64_t matrix = (*rank)[2] - first;  // fc1's weight and bias, fc2's weight and bias
  std::vector<Local> locals;
  for (int64_t i = 0; i < sharding.local_shape[0]; ++i) {
    Local local = {*rank, &parameter, {sharding.offset, sharding.local_shape}};
    local.rank[2] = order.has_grouped_experts ? first + matrix / 2 * 2 : first;
    local.rank[3] = i;
    local.rank[4] = order.has_grouped_experts ? matrix % 2 : matrix;
    local.block.start[0] += i;
    local.block.extent[0] = 1;
    locals.push_back(local);
  }
  return locals;
}

absl::Status OptimizerBuffers::AssignBuffer(const Place& place, const std::vector<Local>& locals) {
  const std::string name = absl::StrCat(place[0] > 0 ? absl::StrCat("chained_", place[0], ".") : "",
                                        kBuffers, place[1], ".gbuf_idx_", place[2]);
  const auto found = buckets_.find(place);
  if (found == buckets_.end()) return Broken(absl::StrCat(name, " is missing"));
  const std::vector<Bucket>& buckets = found->second;
  size_t bucket = 0;
  int64_t end = 0;  // of the parameter before, in the bucket
  for (const Local& local : locals) {
    const Parameter& parameter = *local.parameter;
    int64_t begin = RoundUp(end, kAlignment);
    // In front of a bucket of the word table alone, a bucket's size is rounded up.
    if (end > 0 && (end == buckets[bucket].size || begin == buckets[bucket].size)) {
      ++bucket;
      begin = 0;
    }
    const int64_t size = local.block.extent.numel();
    if (bucket == buckets.size() || size > buckets[bucket].size - begin)
      return Broken(absl::StrCat(name, " has no room where ", parameter.name, " is to be"));
    end = begin + size;
    if (!parameter.owner) continue;
    Whole& whole = parameters_[parameter.name];
    whole.shape = parameter.sharding.global_shape;
    // Of what several ranks have the first one's counts, as it does of the weights.
    const bool is_there = absl::c_any_of(
        whole.pieces, [&](const Piece& piece) { return piece.block == local.block; });
    if (!is_there) whole.pieces.push_back({local.block, &buckets[bucket], begin});
  }
  const bool is_full =
      bucket + 1 == buckets.size() &&
      (end == buckets[bucket].size || RoundUp(end, kAlignment) == buckets[bucket].size);
  if (!is_full) return Broken(absl::StrCat(name, " is larger than this part of the model"));
  return absl::OkStatus();
}

absl::Status OptimizerBuffers::AssignRank(const ModelOptions& model, const MegatronLayout& layout,
                                          const Order& order, int stage, int expert_rank,
                                          int tensor_rank, bool of_experts) {
  const int tensor_size = of_experts ? layout.expert_tensor_parallel : layout.tensor_parallel;
  const int expert_size = of_experts ? layout.expert_parallel : 1;
  Place place = {of_experts ? 1 : 0,
                 (int64_t{stage} * expert_size + expert_rank) * tensor_size + tensor_rank, 0};
  for (int chunk = 0; chunk < layout.chunks; ++chunk) {
    // Each part of the model is a stage of its own here.
    StageSetup setup;
    setup.device = {DeviceType::kMeta};
    setup.placement.stage = chunk * layout.stages + stage;
    setup.placement.stages = layout.parts();
    ProcessGroup tensor;
    if (tensor_size > 1) tensor = ProcessGroup::ForPlanning(tensor_size, tensor_rank, "tp");
    if (!of_experts) setup.tensor_group = tensor;
    // Where experts have another optimizer, how they are shared does not matter to this one.
    if (of_experts || layout.expert_parallel == 1) setup.expert_groups.tensor = tensor;
    if (of_experts)
      setup.expert_groups.expert = ProcessGroup::ForPlanning(expert_size, expert_rank, "ep");
    const std::unique_ptr<ModelStage> part = MakeStage(model, setup);
    std::vector<Local> locals;
    for (const Parameter* parameter : part->parameters()) {
      // Where all ranks have all experts, one optimizer has all parameters.
      const bool is_mine =
          layout.expert_parallel == 1 || parameter->sharding.expert_grid == of_experts;
      if (is_mine) absl::c_move(LocalsOf(*parameter, order), std::back_inserter(locals));
    }
    // A part without experts has no buffer for them.
    if (locals.empty()) continue;
    absl::c_sort(locals, [](const Local& a, const Local& b) { return b.rank < a.rank; });
    MEGATRON_RETURN_IF_ERROR(AssignBuffer(place, locals));
    ++place[2];
    ++buffers_in_use_;
  }
  return absl::OkStatus();
}

absl::Status OptimizerBuffers::Assign(const ModelOptions& model, const MegatronLayout& layout,
                                      const Order& order) {
  parameters_.clear();
  buffers_in_use_ = 0;
  const bool has_two = model.transformer.moe.num_experts > 0 && layout.expert_parallel > 1;
  for (int stage = 0; stage < layout.stages; ++stage) {
    for (int rank = 0; rank < layout.tensor_parallel; ++rank) {
      MEGATRON_RETURN_IF_ERROR(CheckInterrupted());
      MEGATRON_RETURN_IF_ERROR(
          AssignRank(model, layout, order, stage, 0, rank, /*of_experts=*/false));
    }
    for (int expert = 0; has_two && expert < layout.expert_parallel; ++expert) {
      for (int rank = 0; rank < layout.expert_tensor_parallel; ++rank) {
        MEGATRON_RETURN_IF_ERROR(CheckInterrupted());
        MEGATRON_RETURN_IF_ERROR(
            AssignRank(model, layout, order, stage, expert, rank, /*of_experts=*/true));
      }
    }
  }
  if (buffers_in_use_ == buckets_.size()) return absl::OkStatus();
  return Broken(absl::StrCat("there are ", buckets_.size(), " of them, not the ", buffers_in_use_,
                             " that ranks have of this model as the arguments say"));
}

absl::Status OptimizerBuffers::Check(const ModelOptions& model,
                                     const std::vector<ShardedTensor>& weights) const {
  for (const ShardedTensor& weight : weights) {
    const auto found = parameters_.find(weight.name);
    if (found == parameters_.end()) continue;
    MEGATRON_RETURN_IF_ERROR(CheckInterrupted());
    const auto count = static_cast<size_t>(weight.global_shape.numel());
    std::vector<float> masters(count), rounded(count);
    MEGATRON_RETURN_IF_ERROR(
        Read(kMaster, weight.name, Tensor(masters.data(), DType::kFloat32, weight.global_shape)));
    MEGATRON_RETURN_IF_ERROR(
        weight.source(Tensor(rounded.data(), DType::kFloat32, weight.global_shape)));
    for (size_t i = 0; i < count; ++i) {
      if (RoundsTo(masters[i], rounded[i], model.transformer.dtype)) continue;
      return Broken(absl::StrCat("what is where the masters of ", weight.name,
                                 " are to be does not round to this weight: element ", i, " is ",
                                 masters[i], " and not ", rounded[i]));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<OptimizerBuffers> OptimizerBuffers::Open(const DcpWeights& checkpoint,
                                                        const ModelOptions& model,
                                                        const MegatronLayout& layout,
                                                        const std::vector<ShardedTensor>& weights) {
  MEGATRON_RETURN_IF_ERROR(CheckLayout(model, layout));
  OptimizerBuffers buffers(checkpoint);
  MEGATRON_RETURN_IF_ERROR(buffers.ReadBuckets());
  const auto fits = [&](const Order& order) {
    absl::Status status = buffers.Assign(model, layout, order);
    if (status.ok()) status = buffers.Check(model, weights);
    return status;
  };
  Order engine, local;
  engine.of_layer.assign(std::begin(kOfTransformerEngine), std::end(kOfTransformerEngine));
  local.of_layer.assign(std::begin(kOfLocal), std::end(kOfLocal));
  const absl::Status usual = fits(engine);
  if (usual.ok() || !absl::IsDataLoss(usual)) {
    MEGATRON_RETURN_IF_ERROR(usual);
    return buffers;
  }
  std::vector<Order> others = {local};
  if (model.transformer.moe.num_experts > 0) {
    engine.has_grouped_experts = local.has_grouped_experts = false;
    others.insert(others.end(), {engine, local});
  }
  for (const Order& order : others) {
    if (fits(order).ok()) return buffers;
  }
  return usual;
}

absl::Status OptimizerBuffers::Read(absl::string_view state, const std::string& parameter,
                                    const Tensor& out) const {
  if (state == kMaster) state = "param";
  const Whole& whole = parameters_.at(parameter);
  CHECK(out.shape() == whole.shape) << parameter;
  const Rectangle all = {Shape(std::vector<int64_t>(static_cast<size_t>(whole.shape.rank()), 0)),
                         whole.shape};
  for (const Piece& piece : whole.pieces) {
    const std::string& name = piece.bucket->names.find(state)->second;
    if (piece.block == all) return checkpoint_->ReadElements(name, piece.begin, out);
    std::vector<float> memory(static_cast<size_t>(piece.block.extent.numel()));
    MEGATRON_RETURN_IF_ERROR(checkpoint_->ReadElements(
        name, piece.begin, Tensor(memory.data(), DType::kFloat32, piece.block.extent)));
    MEGATRON_RETURN_IF_ERROR(ForEachRun(piece.block, all, piece.block, [&](const CommonRun& run) {
      std::copy_n(memory.begin() + run.source, run.count, out.data<float>() + run.target);
      return absl::OkStatus();
    }));
  }
  return absl::OkStatus();
}

}  // namespace megatron
