#include "megatron/train/trainer/upcycling.h"

#include <cmath>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "megatron/base/status_macros.h"
#include "megatron/ops/elementwise.h"

namespace megatron {
namespace {

constexpr absl::string_view kExperts = ".mlp.experts.experts.", kRouter = ".mlp.router.";

// Each of an MLP's two or, with gates, three factors takes its share of the scale. A squared ReLU
// counts the first twice.
float ScaleOf(const TransformerOptions& options, double parts) {
  const double copies = static_cast<double>(options.moe.num_experts) / parts;
  const double scale = options.moe.router.pre_softmax
                           ? copies * parts * parts / static_cast<double>(options.moe.router.topk)
                           : parts;
  const bool three = options.gated || options.activation == ops::Activation::kSquaredRelu;
  return static_cast<float>(std::pow(scale, three ? 1.0 / 3 : 0.5));
}

Shape WithoutFirst(const Shape& shape) { return Shape(shape.begin() + 1, shape.rank() - 1); }

}  // namespace

Upcycling::Upcycling(const TransformerOptions& options, uint64_t seed)
    : parts_(options.ffn_hidden_size / options.moe.ffn_hidden_size),
      part_size_(options.moe.ffn_hidden_size),
      scale_(ScaleOf(options, static_cast<double>(parts_))),
      seed_(seed) {}

std::string Upcycling::DenseName(absl::string_view name) {
  if (absl::StrContains(name, kRouter)) return "";
  return absl::StrReplaceAll(
      name, {{kExperts, ".mlp."}, {".pre_mlp_layernorm.", ".mlp.linear_fc1.layer_norm_"}});
}

void Upcycling::Begin(const Parameter& parameter, const ShardedTensor& block) const {
  Parameter row;
  row.name = parameter.name;
  row.initializer = parameter.initializer;
  row.sharding.global_shape = block.global_shape;
  row.sharding.offset = block.offset;
  row.sharding.local_shape = block.tensor.shape();
  row.sharding.local_shape[0] = 1;
  std::vector<float> values(row.sharding.local_shape.numel());
  const Tensor filled(values.data(), DType::kFloat32, row.sharding.local_shape);
  for (int64_t i = 0; i < block.tensor.dim(0); ++i) {
    row.sharding.offset[0] = (block.offset[0] + i) / parts_;
    FillInitial(row, seed_, filled);
    ops::Copy(Stream::Inline(), filled, block.tensor.Slice(0, i, i + 1));
  }
}

absl::Status Upcycling::Load(const CheckpointReader& dense, const Parameter& parameter,
                             const ShardedTensor& block) const {
  ShardedTensor part = block;
  part.name = DenseName(block.name);
  if (part.name.empty()) {
    Begin(parameter, block);
    return absl::OkStatus();
  }
  if (!absl::StrContains(block.name, kExperts)) return dense.Load(part);
  const bool is_weight = absl::EndsWith(block.name, ".weight");
  const bool is_first = absl::StrContains(block.name, ".linear_fc1.");
  part.global_shape = WithoutFirst(block.global_shape);
  part.offset = WithoutFirst(block.offset);
  // The dim that is cut into parts. The second bias has none: each expert has all of it.
  const int cut = part.global_shape.rank() - (is_first && is_weight ? 2 : 1);
  const bool is_cut = is_first || is_weight;
  if (is_cut) part.global_shape[cut] *= parts_;
  for (int64_t i = 0; i < block.tensor.dim(0); ++i) {
    part.tensor = block.tensor.Select(0, i);
    if (is_cut) {
      part.offset[cut] = block.offset[cut + 1] + (block.offset[0] + i) % parts_ * part_size_;
    }
    MEGATRON_RETURN_IF_ERROR(dense.Load(part));
    if (is_cut) ops::Scale(Stream::Inline(), scale_, part.tensor);
  }
  return absl::OkStatus();
}

}  // namespace megatron
