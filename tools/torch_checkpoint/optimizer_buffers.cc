#include "tools/torch_checkpoint/optimizer_buffers.h"

#include <algorithm>
#include <array>
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

// The parameters of a layer in the order in which Megatron's modules register them. With
// Transformer Engine norms belong to the linear layers behind them; else they are modules.
constexpr absl::string_view kOfTransformerEngine[] = {
    "self_attention.core_attention.softmax_offset",
    "self_attention.linear_proj.weight",
    "self_attention.linear_proj.bias",
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
};
constexpr absl::string_view kOfLocal[] = {
    "self_attention.linear_qkv.layer_norm_weight",
    "self_attention.linear_qkv.layer_norm_bias",
    "self_attention.core_attention.softmax_offset",
    "self_attention.linear_proj.weight",
    "self_attention.linear_proj.bias",
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
struct BucketName {
  int64_t rank = 0, chunk = 0, bucket = 0;
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

// The place of a parameter among those of the model, in the order of Megatron's modules. The copy
// of the word table on the last stage is the weight of its output layer.
using Rank = std::array<int64_t, 3>;

std::optional<Rank> RankOf(absl::string_view name, bool is_copy,
                           const std::vector<absl::string_view>& order) {
  if (is_copy || name == "output_layer.weight") return Rank{3, 0, 0};
  if (name == "embedding.word_embeddings.weight") return Rank{0, 0, 0};
  if (name == "embedding.position_embeddings.weight") return Rank{0, 0, 1};
  if (name == "decoder.final_layernorm.weight") return Rank{2, 0, 0};
  if (name == "decoder.final_layernorm.bias") return Rank{2, 0, 1};
  Rank rank = {1, 0, 0};
  if (!absl::ConsumePrefix(&name, "decoder.layers.") || !TakeNumber(&name, &rank[1]) ||
      !absl::ConsumePrefix(&name, "."))
    return std::nullopt;
  const auto found = absl::c_find(order, name);
  if (found == order.end()) return std::nullopt;
  rank[2] = found - order.begin();
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
  if (!divides(layout.tensor_parallel, layer.num_query_groups) ||
      !divides(layout.tensor_parallel, layer.ffn_hidden_size) ||
      !divides(layout.tensor_parallel, model.padded_vocab_size)) {
    return Unknown(
        absl::StrCat("the model's groups of queries, MLPs or vocabulary are not even "
                     "over ",
                     layout.tensor_parallel, " tensor-parallel ranks"));
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

bool OptimizerBuffers::AreIn(const DcpWeights& checkpoint) {
  // An optimizer for several kinds of parameters puts its number in front.
  return absl::c_any_of(checkpoint.Names(),
                        [](const std::string& name) { return absl::StrContains(name, kBuffers); });
}

absl::Status OptimizerBuffers::ReadBuckets(const MegatronLayout& layout) {
  const int64_t ranks = int64_t{layout.tensor_parallel} * layout.stages;
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
    if (parsed->rank >= ranks || parsed->chunk >= layout.chunks) {
      return Broken(absl::StrCat(name, " is of no rank of tensor_model_parallel_size ",
                                 layout.tensor_parallel, ", pipeline_model_parallel_size ",
                                 layout.stages, ", virtual_pipeline_model_parallel_size ",
                                 layout.chunks, " and parameters of one type"));
    }
    Bucket& bucket = all[{parsed->rank, parsed->chunk}][parsed->bucket];
    if (!bucket.names.empty() && bucket.size != shape[0])
      return Broken(absl::StrCat(name, " has another size than other states of its bucket"));
    bucket.size = shape[0];
    if (!bucket.names.emplace(parsed->state, name).second)
      return Broken(absl::StrCat(name, " is there for parameters of another type, too"));
  }
  for (Place place; place.rank < ranks; ++place.rank) {
    for (place.chunk = 0; place.chunk < layout.chunks; ++place.chunk) {
      std::vector<Bucket>& buckets = buckets_[place];
      for (auto& [number, bucket] : all[place]) {
        if (number != static_cast<int64_t>(buckets.size())) break;
        buckets.push_back(std::move(bucket));
      }
      if (buckets.empty() || buckets.size() != all[place].size()) {
        return Broken(absl::StrCat("those of ", kBuffers, place.rank, ".gbuf_idx_", place.chunk,
                                   " are missing, or have a gap in their numbers"));
      }
      for (const Bucket& bucket : buckets) {
        for (const absl::string_view state : kStates) {
          if (bucket.names.find(state) != bucket.names.end()) continue;
          return Broken(
              absl::StrCat("a bucket has no ", state, ", but ", bucket.names.begin()->second));
        }
      }
    }
  }
  return absl::OkStatus();
}

absl::Status OptimizerBuffers::AssignPart(const ModelOptions& model, const MegatronLayout& layout,
                                          int part, int tensor_rank, const Order& order) {
  // Each part of the model is a stage of its own here.
  StageSetup setup;
  setup.device = {DeviceType::kMeta};
  setup.placement.stage = part;
  setup.placement.stages = layout.parts();
  if (layout.tensor_parallel > 1)
    setup.tensor_group = ProcessGroup::ForPlanning(layout.tensor_parallel, tensor_rank, "tp");
  const std::unique_ptr<ModelStage> stage = MakeStage(model, setup);
  std::vector<std::pair<Rank, const Parameter*>> parameters;
  for (const Parameter* parameter : stage->parameters()) {
    const std::optional<Rank> rank = RankOf(parameter->name, !parameter->owner, order);
    CHECK(rank.has_value()) << parameter->name;
    parameters.emplace_back(*rank, parameter);
  }
  absl::c_sort(parameters, [](const auto& a, const auto& b) { return b.first < a.first; });
  const Place place = {int64_t{part % layout.stages} * layout.tensor_parallel + tensor_rank,
                       part / layout.stages};
  const std::vector<Bucket>& buckets = buckets_.at(place);
  const auto broken = [&](absl::string_view what) {
    return Broken(absl::StrCat(kBuffers, place.rank, ".gbuf_idx_", place.chunk, " ", what));
  };
  size_t bucket = 0;
  int64_t end = 0;  // of the parameter before, in the bucket
  for (const auto& [rank, parameter] : parameters) {
    const Sharding& sharding = parameter->sharding;
    int64_t begin = RoundUp(end, kAlignment);
    // In front of a bucket of the word table alone, a bucket's size is rounded up.
    if (end > 0 && (end == buckets[bucket].size || begin == buckets[bucket].size)) {
      ++bucket;
      begin = 0;
    }
    const int64_t size = sharding.local_shape.numel();
    if (bucket == buckets.size() || size > buckets[bucket].size - begin)
      return broken(absl::StrCat("has no room where ", parameter->name, " is to be"));
    end = begin + size;
    // Of a tensor that each rank has as a whole the first rank's counts, as it does of the weights.
    const bool is_whole = sharding.local_shape == sharding.global_shape;
    if (!parameter->owner || (is_whole && tensor_rank > 0)) continue;
    Whole& whole = parameters_[parameter->name];
    whole.shape = sharding.global_shape;
    whole.pieces.push_back({{sharding.offset, sharding.local_shape}, &buckets[bucket], begin});
  }
  const bool is_full =
      bucket + 1 == buckets.size() &&
      (end == buckets[bucket].size || RoundUp(end, kAlignment) == buckets[bucket].size);
  if (!is_full) return broken("is larger than this part of the model");
  return absl::OkStatus();
}

absl::Status OptimizerBuffers::Assign(const ModelOptions& model, const MegatronLayout& layout,
                                      const Order& order) {
  parameters_.clear();
  for (int part = 0; part < layout.parts(); ++part) {
    for (int rank = 0; rank < layout.tensor_parallel; ++rank) {
      MEGATRON_RETURN_IF_ERROR(CheckInterrupted());
      MEGATRON_RETURN_IF_ERROR(AssignPart(model, layout, part, rank, order));
    }
  }
  return absl::OkStatus();
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
  MEGATRON_RETURN_IF_ERROR(buffers.ReadBuckets(layout));
  const auto fits = [&](const Order& order) {
    absl::Status status = buffers.Assign(model, layout, order);
    if (status.ok()) status = buffers.Check(model, weights);
    return status;
  };
  const absl::Status usual =
      fits({std::begin(kOfTransformerEngine), std::end(kOfTransformerEngine)});
  if (usual.ok() || !absl::IsDataLoss(usual)) {
    MEGATRON_RETURN_IF_ERROR(usual);
    return buffers;
  }
  if (fits({std::begin(kOfLocal), std::end(kOfLocal)}).ok()) return buffers;
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
