#include "tools/torch_checkpoint/torch_import.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "megatron/base/status_macros.h"
#include "megatron/models/make_stage.h"
#include "tools/common/interrupt.h"

namespace megatron {
namespace {

constexpr size_t kProblemsShown = 20;
constexpr absl::string_view kLayers = ".layers.";
constexpr absl::string_view kOptimizer = "optimizer.";
constexpr absl::string_view kStates = "optimizer.state.";
constexpr absl::string_view kMaster = "fp32_param";
constexpr absl::string_view kMoments[] = {"exp_avg", "exp_avg_sq"};
constexpr absl::string_view kBias = ".mlp.router.expert_bias";

int64_t Product(const std::vector<int64_t>& shape, size_t first) {
  int64_t product = 1;
  for (size_t d = first; d < shape.size(); ++d) product *= shape[d];
  return product;
}

// "decoder.layers.3.mlp.router.weight" is "decoder.layers.mlp.router.weight" of layer 3. Returns an
// empty name for parameters of no layer.
struct OfAllLayers {
  std::string name;
  int64_t layer = -1;
};

OfAllLayers WithoutLayer(absl::string_view name) {
  const size_t at = name.find(kLayers);
  if (at == absl::string_view::npos) return {};
  const size_t begin = at + kLayers.size(), end = name.find('.', begin);
  OfAllLayers of;
  if (end == absl::string_view::npos ||
      !absl::SimpleAtoi(name.substr(begin, end - begin), &of.layer))
    return {};
  of.name = absl::StrCat(name.substr(0, begin), name.substr(end + 1));
  return of;
}

// Returns the name without what an optimizer for several kinds of parameters puts in front of it:
// "chained_1.optimizer.state.exp_avg.NAME".
absl::string_view WithoutChain(absl::string_view name) {
  absl::string_view rest = name;
  int64_t number;
  const size_t end = name.find('.');
  if (end == absl::string_view::npos || !absl::ConsumePrefix(&rest, "chained_") ||
      !absl::SimpleAtoi(rest.substr(0, rest.find('.')), &number))
    return name;
  return name.substr(end + 1);
}

bool IsOfVocabulary(absl::string_view name) {
  return name == "embedding.word_embeddings.weight" || name == "output_layer.weight";
}

// What a model has besides weights, and what follows from the configuration.
bool IsNoWeight(absl::string_view name) {
  return absl::StartsWith(WithoutChain(name), kOptimizer) ||
         absl::StrContains(name, "_extra_state") ||
         absl::EndsWith(name, ".local_tokens_per_expert") || absl::EndsWith(name, ".inv_freq") ||
         !absl::StrContains(name, '.');
}

// Returns whether the tensor, without its first dim if `indexed`, has the parameter's elements in
// its order.
bool Fits(const std::vector<int64_t>& theirs, bool indexed, const std::string& name,
          const Shape& ours, int64_t vocab_size) {
  const size_t first = indexed ? 1 : 0;
  const int64_t count = Product(theirs, first);
  const bool matrices = theirs.size() >= first + 2 && ours.rank() >= 2;
  if (matrices && theirs.back() != ours[-1]) return false;
  if (count == ours.numel()) return true;
  return !indexed && IsOfVocabulary(name) && matrices && theirs[0] >= vocab_size &&
         theirs[0] <= ours[0] && count == theirs[0] * ours[-1];
}

// Returns the first problems, a line each.
std::string Listed(std::vector<std::string> problems) {
  const size_t count = problems.size();
  if (count > kProblemsShown) {
    problems.resize(kProblemsShown);
    problems.push_back(absl::StrCat("and ", count - kProblemsShown, " more"));
  }
  return absl::StrJoin(problems, "\n  ");
}

}  // namespace

std::vector<TorchImport::Part> TorchImport::PartsOf(const TransformerOptions& layer,
                                                    absl::string_view parameter) {
  const auto ends = [&](absl::string_view end) { return absl::EndsWith(parameter, end); };
  if (layer.hybrid_layers.empty()) return {};
  const MambaOptions& mamba = layer.mamba;
  const int64_t heads = mamba.num_heads / mamba.num_groups, inner = heads * mamba.head_dim;
  if (ends(".mixer.in_proj.weight")) {
    return {{".z", inner},
            {".x", inner},
            {".B", mamba.state_dim},
            {".C", mamba.state_dim},
            {".dt", heads}};
  }
  if (ends(".mixer.conv1d.weight") || ends(".mixer.conv1d.bias"))
    return {{".x", inner}, {".B", mamba.state_dim}, {".C", mamba.state_dim}};
  const DeltaOptions& delta = layer.delta;
  const int64_t of_key = delta.num_value_heads / delta.num_key_heads;
  const int64_t key = delta.key_head_dim, values = of_key * delta.value_head_dim;
  if (ends(".self_attention.in_proj.weight")) {
    return {{".query", key}, {".key", key},     {".value", values},
            {".z", values},  {".beta", of_key}, {".alpha", of_key}};
  }
  if (ends(".self_attention.conv1d.weight"))
    return {{".query", key}, {".key", key}, {".value", values}};
  return {};
}

std::vector<std::string> TorchImport::NamesOf(const Found& found) {
  if (found.parts.empty()) return {found.name};
  std::vector<std::string> names;
  for (const Part& part : found.parts) names.push_back(absl::StrCat(found.name, part.name));
  return names;
}

void TorchImport::AddState(const std::string& name) {
  absl::string_view rest = WithoutChain(name);
  if (!absl::ConsumePrefix(&rest, kStates)) return;
  const size_t end = rest.find('.');
  if (end == absl::string_view::npos) return;
  absl::string_view state = rest.substr(0, end);
  if (state == "param") state = kMaster;  // so Megatron's fully_reshardable form calls it
  states_[std::string(state)].emplace(rest.substr(end + 1), name);
}

std::vector<std::string> TorchImport::StateNamesOf(const Found& found,
                                                   absl::string_view state) const {
  const auto all = states_.find(state);
  if (all == states_.end()) return {};
  std::vector<std::string> names;
  for (const std::string& name : NamesOf(found)) {
    const auto of = all->second.find(name);
    if (of == all->second.end() || *weights_->ShapeOf(of->second) != *weights_->ShapeOf(name))
      return {};
    names.push_back(of->second);
  }
  return names;
}

absl::StatusOr<TorchImport> TorchImport::Match(const TorchWeights& weights,
                                               const ModelOptions& model) {
  TorchImport import(weights);
  import.dtype_ = model.transformer.dtype;
  std::vector<std::string> problems;
  std::set<std::string> rest;
  for (std::string& name : weights.Names()) {
    import.AddState(name);
    if (!IsNoWeight(name)) rest.insert(std::move(name));
  }
  const auto take = [&](const std::string& parameter, const Shape& shape, bool is_state) {
    const OfAllLayers of = WithoutLayer(parameter);
    const std::vector<int64_t>* theirs = weights.ShapeOf(parameter);
    Found found = {parameter, shape, parameter, -1, is_state};
    if (theirs == nullptr && !of.name.empty()) {
      theirs = weights.ShapeOf(of.name);
      found.name = of.name;
      found.index = of.layer;
      if (theirs != nullptr && (theirs->empty() || of.layer >= (*theirs)[0])) theirs = nullptr;
    }
    if (theirs == nullptr) found.parts = PartsOf(model.transformer, parameter);
    if (!found.parts.empty()) {
      found.name = parameter;
      found.index = -1;
      for (size_t i = 0; i < found.parts.size(); ++i) {
        const std::string name = NamesOf(found)[i];
        const std::vector<int64_t>* const part = weights.ShapeOf(name);
        Shape expected = shape;
        expected[1] = found.parts[i].rows;
        if (part == nullptr || !Fits(*part, false, name, expected, model.vocab_size)) {
          problems.push_back(absl::StrCat("'", name, "' is missing, or not [",
                                          absl::StrJoin(expected.dims(), ", "), "]"));
        }
        rest.erase(name);
      }
      import.found_.push_back(std::move(found));
      return;
    }
    if (theirs == nullptr) {
      problems.push_back(absl::StrCat("'", parameter, "' is missing"));
      return;
    }
    rest.erase(found.name);
    if (!Fits(*theirs, found.index >= 0, parameter, shape, model.vocab_size)) {
      problems.push_back(absl::StrCat("'", found.name, "' is [", absl::StrJoin(*theirs, ", "),
                                      "], which has not the weights of ", parameter, ", [",
                                      absl::StrJoin(shape.dims(), ", "), "]"));
    }
    import.found_.push_back(std::move(found));
  };
  const auto stage = MakeStage(model, {{DeviceType::kMeta}});
  for (const Parameter* parameter : stage->parameters())
    take(parameter->name, parameter->sharding.global_shape, /*is_state=*/false);
  const MoeOptions& moe = model.transformer.moe;
  for (int64_t i = 0; moe.expert_bias && i < model.transformer.num_layers; ++i) {
    if (moe.IsMoeLayer(i))
      take(absl::StrCat("decoder.layers.", i, kBias), {moe.num_experts}, /*is_state=*/true);
  }
  for (const std::string& name : rest)
    problems.push_back(absl::StrCat("'", name, "' has no place in this model"));
  if (problems.empty()) return import;
  return absl::DataLossError(
      absl::StrCat("the checkpoint does not hold this model:\n  ", Listed(problems)));
}

absl::Status TorchImport::ReadParts(const Found& found, const std::vector<std::string>& names,
                                    const Tensor& out) const {
  const int64_t groups = found.shape[0], rows = found.shape[1];
  const int64_t row_bytes = found.shape.numel() / (groups * rows) * SizeOf(out.dtype());
  int64_t first = 0;
  for (size_t i = 0; i < names.size(); ++i) {
    const int64_t of_group = found.parts[i].rows * row_bytes;
    // Aligned for any type.
    std::vector<int64_t> memory(static_cast<size_t>(groups * of_group + 7) / 8);
    const Tensor part(memory.data(), out.dtype(), {groups * of_group / SizeOf(out.dtype())});
    MEGATRON_RETURN_IF_ERROR(weights_->Read(names[i], /*index=*/-1, part));
    for (int64_t group = 0; group < groups; ++group) {
      std::memcpy(static_cast<char*>(out.raw()) + (group * rows + first) * row_bytes,
                  reinterpret_cast<const char*>(memory.data()) + group * of_group,
                  static_cast<size_t>(of_group));
    }
    first += found.parts[i].rows;
  }
  return absl::OkStatus();
}

ShardedTensor TorchImport::EmptyBlock(const Found& found, const std::string& ours, DType dtype) {
  ShardedTensor block;
  block.name = ours;
  block.tensor = Tensor(nullptr, dtype, found.shape, {DeviceType::kMeta});
  block.global_shape = found.shape;
  block.offset = Shape(std::vector<int64_t>(static_cast<size_t>(found.shape.rank()), 0));
  return block;
}

ShardedTensor TorchImport::Block(const Found& found, const std::string& ours,
                                 std::vector<std::string> names, DType dtype) const {
  ShardedTensor block = EmptyBlock(found, ours, dtype);
  block.source = [this, found, names = std::move(names)](const Tensor& out) {
    const absl::Status interrupted = CheckInterrupted();
    if (!interrupted.ok()) return interrupted;
    if (!found.parts.empty()) return ReadParts(found, names, out);
    return weights_->Read(names[0], found.index, out);
  };
  return block;
}

ShardedTensor TorchImport::WeightBlock(const Found& found) const {
  return Block(found, found.parameter, NamesOf(found), found.is_state ? DType::kFloat32 : dtype_);
}

std::vector<ShardedTensor> TorchImport::Blocks() const {
  std::vector<ShardedTensor> blocks;
  for (const Found& found : found_) {
    blocks.push_back(WeightBlock(found));
    if (found.is_state || dtype_ == DType::kFloat32) continue;
    std::vector<std::string> masters = StateNamesOf(found, kMaster);
    if (masters.empty()) masters = NamesOf(found);
    blocks.push_back(Block(found, absl::StrCat(kStates, kMaster, ".", found.parameter),
                           std::move(masters), DType::kFloat32));
  }
  return blocks;
}

absl::StatusOr<std::vector<ShardedTensor>> TorchImport::BlocksWithStates() const {
  for (const auto& [state, names] : states_) {
    if (state != kMaster && absl::c_find(kMoments, state) == std::end(kMoments)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the optimizer's state ", state, " is none of Adam's; only runs with Adam go on here"));
    }
  }
  std::vector<ShardedTensor> blocks = Blocks();
  std::vector<std::string> problems;
  for (const Found& found : found_) {
    if (found.is_state) continue;
    const auto missing = [&](absl::string_view state) {
      problems.push_back(absl::StrCat("'", kStates, state, ".", found.name,
                                      "' is missing, or has another shape than ", found.name));
    };
    if (dtype_ != DType::kFloat32 && StateNamesOf(found, kMaster).empty()) missing(kMaster);
    for (const absl::string_view state : kMoments) {
      std::vector<std::string> names = StateNamesOf(found, state);
      if (names.empty()) {
        missing(state);
        continue;
      }
      blocks.push_back(Block(found, absl::StrCat(kStates, state, ".", found.parameter),
                             std::move(names), DType::kFloat32));
    }
  }
  if (problems.empty()) return blocks;
  return absl::DataLossError(
      absl::StrCat("the checkpoint does not hold the optimizer's states:\n  ", Listed(problems)));
}

std::vector<ShardedTensor> TorchImport::BlocksWithStates(const StateReader& read) const {
  std::vector<ShardedTensor> blocks;
  for (const Found& found : found_) {
    blocks.push_back(WeightBlock(found));
    if (found.is_state) continue;
    for (const absl::string_view state : {kMaster, kMoments[0], kMoments[1]}) {
      if (state == kMaster && dtype_ == DType::kFloat32) continue;
      blocks.push_back(
          EmptyBlock(found, absl::StrCat(kStates, state, ".", found.parameter), DType::kFloat32));
      blocks.back().source = [read, state, parameter = found.parameter](const Tensor& out) {
        const absl::Status interrupted = CheckInterrupted();
        return interrupted.ok() ? read(state, parameter, out) : interrupted;
      };
    }
  }
  return blocks;
}

}  // namespace megatron
