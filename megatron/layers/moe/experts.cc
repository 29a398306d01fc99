#include "megatron/layers/moe/experts.h"

#include "megatron/ops/activation.h"

namespace megatron {
namespace {

// The sharding of a tensor whose dim 0 is cut over ranks with different experts, and dim `features`
// over the ranks that share an expert.
Parameter MakeWeight(const std::string& name, const Shape& shape, int features, float init_std,
                     const ExpertGroups& groups) {
  Parameter weight;
  weight.name = name;
  weight.initializer = Initializer::Normal(init_std);
  weight.matrix = MatrixDims{/*stacked=*/shape.rank() - 2, /*parts=*/{}};
  Sharding& sharding = weight.sharding;
  sharding = Replicated(shape);
  sharding.expert_grid = true;
  sharding.sharded = {Axis::kExpert, Axis::kTensor};
  const auto cut = [&](int dim, const ProcessGroup& group) {
    CHECK_EQ(shape[dim] % group.size(), 0) << name << " " << shape << " over " << group.size();
    sharding.local_shape[dim] = shape[dim] / group.size();
    sharding.offset[dim] = sharding.local_shape[dim] * group.rank();
  };
  cut(0, groups.expert);
  cut(features, groups.tensor);
  return weight;
}

Shape Fc1Shape(const TransformerOptions& options) {
  const MoeOptions& moe = options.moe;
  if (!options.gated) return {moe.num_experts, moe.ffn_hidden_size, options.hidden_size};
  return {moe.num_experts, 2, moe.ffn_hidden_size, options.hidden_size};
}

}  // namespace

Experts::Experts(const TransformerOptions& options, const std::string& name,
                 const ExpertGroups& groups)
    : gated_(options.gated),
      recompute_(options.recompute.mlp),
      activation_(options.activation),
      gate_(options.gate),
      dtype_(options.dtype),
      fc1_products_(options.float8, LinearProducts::Cut::kOutput, name + ".linear_fc1.weight",
                    options.moe.num_experts, groups),
      fc2_products_(options.float8, LinearProducts::Cut::kInput, name + ".linear_fc2.weight",
                    options.moe.num_experts, groups),
      fc1_(MakeWeight(name + ".linear_fc1.weight", Fc1Shape(options), options.gated ? 2 : 1,
                      options.init_std, groups)),
      fc2_(MakeWeight(name + ".linear_fc2.weight",
                      {options.moe.num_experts, options.hidden_size, options.moe.ffn_hidden_size},
                      2, options.output_init_std, groups)) {}

Tensor Experts::Fc1(const Tensor& x) const {
  const Shape& shape = x.shape();
  return gated_ ? x.View({shape[0], 2 * shape[2], shape[3]}) : x;
}

void Experts::Activate(const LayerContext& ctx, absl::Span<const ops::RowGroup> groups,
                       Arena* arena, Saved* saved) const {
  const int64_t rows = saved->in_RH.dim(0), width = Fc1(fc1_.data).dim(1);
  saved->pre_RI = arena->Allocate(dtype_, {rows, width}, "expert pre-activation");
  saved->activated_RI =
      arena->Allocate(dtype_, {rows, gated_ ? width / 2 : width}, "expert activation");
  fc1_products_.Forward(ctx, groups, saved->in_RH, Fc1(fc1_.data), saved->pre_RI, &saved->fc1);
  if (gated_) {
    ops::GateForward(ctx.stream, gate_, saved->pre_RI, saved->activated_RI);
  } else {
    ops::ActivationForward(ctx.stream, activation_, saved->pre_RI, saved->activated_RI);
  }
}

void Experts::Forward(const LayerContext& ctx, absl::Span<const ops::RowGroup> groups,
                      const Tensor& in_RH, const Tensor& out_RH, Saved* saved) const {
  Arena::Scope scope(ctx.scratch);
  saved->in_RH = in_RH;
  Activate(ctx, groups, recompute_ ? ctx.scratch : ctx.saved, saved);
  fc2_products_.Forward(ctx, groups, saved->activated_RI, fc2_.data, out_RH, &saved->fc2);
}

void Experts::Backward(const LayerContext& ctx, absl::Span<const ops::RowGroup> groups,
                       const Tensor& dout_RH, const Tensor& din_RH, Saved* saved) {
  if (recompute_) Activate(ctx, groups, ctx.kept(), saved);
  saved->dout_RH = dout_RH;
  saved->dpre_RI = ctx.kept()->Allocate(dtype_, saved->pre_RI.shape(), "expert gradient");
  fc1_products_.Reserve(ctx, saved->dpre_RI, &saved->fc1);
  fc2_products_.Reserve(ctx, dout_RH, &saved->fc2);
  Arena::Scope scope(ctx.scratch);
  const Tensor dactivated_RI =
      ctx.scratch->Allocate(dtype_, saved->activated_RI.shape(), "expert gradient");
  fc2_products_.BackwardInput(ctx, groups, dout_RH, fc2_.data, dactivated_RI, &saved->fc2);
  if (gated_) {
    ops::GateBackward(ctx.stream, gate_, dactivated_RI, saved->pre_RI, saved->dpre_RI);
  } else {
    ops::ActivationBackward(ctx.stream, activation_, dactivated_RI, saved->pre_RI, saved->dpre_RI);
  }
  fc1_products_.BackwardInput(ctx, groups, saved->dpre_RI, Fc1(fc1_.data), din_RH, &saved->fc1);
}

void Experts::BackwardWeight(const LayerContext& ctx, absl::Span<const ops::RowGroup> groups,
                             const Saved& saved) {
  fc2_products_.BackwardWeight(ctx, groups, saved.dout_RH, saved.activated_RI, fc2_.grad,
                               saved.fc2);
  fc1_products_.BackwardWeight(ctx, groups, saved.dpre_RI, saved.in_RH, Fc1(fc1_.grad), saved.fc1);
}

void Experts::AppendParameters(std::vector<Parameter*>* out) {
  out->push_back(&fc1_);
  out->push_back(&fc2_);
}

}  // namespace megatron
