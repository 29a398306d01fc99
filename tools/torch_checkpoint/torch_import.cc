#include "tools/torch_checkpoint/torch_import.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "megatron/models/make_stage.h"
#include "tools/common/interrupt.h"

namespace megatron {
namespace {

constexpr size_t kProblemsShown = 20;
constexpr absl::string_view kLayers = ".layers.";
constexpr absl::string_view kOptimizer = "optimizer.";
constexpr absl::string_view kMaster = "optimizer.state.fp32_param.";
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

bool IsOfVocabulary(absl::string_view name) {
  return name == "embedding.word_embeddings.weight" || name == "output_layer.weight";
}

// What a model has besides weights, and what follows from the configuration.
bool IsNoWeight(absl::string_view name) {
  return absl::StartsWith(name, kOptimizer) || absl::StrContains(name, "_extra_state") ||
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

}  // namespace

absl::StatusOr<TorchImport> TorchImport::Match(const TorchWeights& weights,
                                               const ModelOptions& model) {
  TorchImport import(weights);
  import.dtype_ = model.transformer.dtype;
  std::vector<std::string> problems;
  std::set<std::string> rest;
  for (std::string& name : weights.Names()) {
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
  const size_t count = problems.size();
  if (count > kProblemsShown) {
    problems.resize(kProblemsShown);
    problems.push_back(absl::StrCat("and ", count - kProblemsShown, " more"));
  }
  return absl::DataLossError(absl::StrCat("the checkpoint does not hold this model:\n  ",
                                          absl::StrJoin(problems, "\n  ")));
}

ShardedTensor TorchImport::Block(const Found& found, const std::string& ours,
                                 const std::string& theirs, DType dtype) const {
  ShardedTensor block;
  block.name = ours;
  block.tensor = Tensor(nullptr, dtype, found.shape, {DeviceType::kMeta});
  block.global_shape = found.shape;
  block.offset = Shape(std::vector<int64_t>(static_cast<size_t>(found.shape.rank()), 0));
  block.source = [this, theirs, index = found.index](const Tensor& out) {
    const absl::Status interrupted = CheckInterrupted();
    return interrupted.ok() ? weights_->Read(theirs, index, out) : interrupted;
  };
  return block;
}

std::vector<ShardedTensor> TorchImport::Blocks() const {
  std::vector<ShardedTensor> blocks;
  for (const Found& found : found_) {
    blocks.push_back(
        Block(found, found.parameter, found.name, found.is_state ? DType::kFloat32 : dtype_));
    if (found.is_state || dtype_ == DType::kFloat32) continue;
    const std::string master = absl::StrCat(kMaster, found.name);
    const std::vector<int64_t>* const shape = weights_->ShapeOf(master);
    const bool is_there = shape != nullptr && *shape == *weights_->ShapeOf(found.name);
    blocks.push_back(Block(found, absl::StrCat(kMaster, found.parameter),
                           is_there ? master : found.name, DType::kFloat32));
  }
  return blocks;
}

}  // namespace megatron
