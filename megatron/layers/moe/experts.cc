#include "megatron/layers/moe/experts.h"

#include "megatron/ops/activation.h"
#include "megatron/ops/bias_gradient.h"
#include "megatron/ops/dropout.h"

namespace megatron {
namespace {

// Returns the sharding of a tensor whose dim 0 is cut over ranks with different experts, and dim
// `features`, unless that is kWhole, over the ranks that share an expert.
constexpr int kWhole = -1;
Sharding ShardingOf(const Shape& shape, int features, const ExpertGroups& groups) {
  Sharding sharding = Replicated(shape);
  sharding.expert_grid = true;
  sharding.sharded = {Axis::kExpert};
  if (features != kWhole) sharding.sharded = {Axis::kExpert, Axis::kTensor};
  const auto cut = [&](int dim, const ProcessGroup& group) {
    CHECK_EQ(shape[dim] % group.size(), 0) << shape << " over " << group.size();
    sharding.local_shape[dim] = shape[dim] / group.size();
    sharding.offset[dim] = sharding.local_shape[dim] * group.rank();
  };
  cut(0, groups.expert);
  if (features != kWhole) cut(features, groups.tensor);
  return sharding;
}

Parameter MakeWeight(const std::string& name, const Shape& shape, int features, float init_std,
                     const ExpertGroups& groups) {
  Parameter weight;
  weight.name = name;
  weight.initializer = Initializer::Normal(init_std);
  weight.matrix = MatrixDims{/*stacked=*/shape.rank() - 2, /*parts=*/{}};
  weight.sharding = ShardingOf(shape, features, groups);
  return weight;
}

Parameter MakeBias(const std::string& name, const Shape& shape, int features,
                   const ExpertGroups& groups) {
  Parameter bias;
  bias.name = name;
  bias.weight_decay = false;
  bias.sharding = ShardingOf(shape, features, groups);
  return bias;
}

Shape Fc1Shape(const TransformerOptions& options) {
  const MoeOptions& moe = options.moe;
  if (!options.gated) return {moe.num_experts, moe.ffn_hidden_size, options.hidden_size};
  return {moe.num_experts, 2, moe.ffn_hidden_size, options.hidden_size};
}

Shape Fc1BiasShape(const TransformerOptions& options) {
  const MoeOptions& moe = options.moe;
  if (!options.gated) return {moe.num_experts, moe.ffn_hidden_size};
  return {moe.num_experts, 2, moe.ffn_hidden_size};
}

}  // namespace

Experts::Experts(const TransformerOptions& options, const std::string& name,
                 const ExpertGroups& groups)
    : gated_(options.gated),
      recompute_(options.recompute.mlp),
      has_bias_(options.linear_bias),
      is_first_(groups.tensor.rank() == 0),
      activation_(options.activation),
      gate_(options.gate, options.gate_limit, options.gate_offset),
      dtype_(options.dtype),
      fc1_products_(options.float8, LinearProducts::Cut::kOutput, name + ".linear_fc1.weight",
                    options.moe.num_experts, groups, /*keep_codes=*/!options.recompute.mlp),
      fc2_products_(options.float8, LinearProducts::Cut::kInput, name + ".linear_fc2.weight",
                    options.moe.num_experts, groups, /*keep_codes=*/!options.recompute.mlp),
      fc1_(MakeWeight(name + ".linear_fc1.weight", Fc1Shape(options), options.gated ? 2 : 1,
                      options.init_std, groups)),
      fc2_(MakeWeight(name + ".linear_fc2.weight",
                      {options.moe.num_experts, options.hidden_size, options.moe.ffn_hidden_size},
                      2, options.output_init_std, groups)) {
  if (!has_bias_) return;
  fc1_bias_ =
      MakeBias(name + ".linear_fc1.bias", Fc1BiasShape(options), options.gated ? 2 : 1, groups);
  fc2_bias_ = MakeBias(name + ".linear_fc2.bias", {options.moe.num_experts, options.hidden_size},
                       kWhole, groups);
}

Tensor Experts::Fc1(const Tensor& x) const {
  const Shape& shape = x.shape();
  return gated_ ? x.View({shape[0], 2 * shape[2], shape[3]}) : x;
}

Tensor Experts::BiasOf(const Parameter& bias, const Tensor& of_all, int64_t expert) const {
  if (!has_bias_ || of_all.empty()) return Tensor();
  const Shape& shape = bias.sharding.local_shape;
  return of_all.View({shape[0], shape.numel() / shape[0]}).Select(0, expert);
}

void Experts::AddBias(const LayerContext& ctx, absl::Span<const ops::RowGroup> groups,
                      const Parameter& bias, const Tensor& y_RO) const {
  for (const ops::RowGroup& group : groups) {
    const Tensor bias_O = BiasOf(bias, bias.data, group.expert);
    if (bias_O.empty() || group.begin == group.end) continue;
    const Tensor rows = y_RO.Slice(0, group.begin, group.end);
    ops::BiasDropoutAdd(ctx.stream, ops::Dropout(), rows, bias_O, Tensor(), rows);
  }
}

void Experts::AddBiasGradient(const LayerContext& ctx, absl::Span<const ops::RowGroup> groups,
                              const Tensor& dy_RO, const Parameter& bias) const {
  for (const ops::RowGroup& group : groups) {
    const Tensor dbias_O = BiasOf(bias, bias.grad, group.expert);
    if (dbias_O.empty() || group.begin == group.end) continue;
    ops::BiasBackward(ctx.stream, dy_RO.Slice(0, group.begin, group.end), dbias_O);
  }
}

Shape Experts::ActivatedShape(const Tensor& pre_RI) const {
  const int64_t width = pre_RI.dim(1);
  return {pre_RI.dim(0), gated_ ? width / 2 : width};
}

Tensor Experts::Activate(const LayerContext& ctx, absl::Span<const ops::RowGroup> groups,
                         const Tensor& in_RH, Arena* arena, Saved* saved) const {
  const int64_t rows = in_RH.dim(0), width = Fc1(fc1_.data).dim(1);
  saved->pre_RI = arena->Allocate(dtype_, {rows, width}, "expert pre-activation");
  const Tensor activated_RI =
      (fc2_products_.keeps_codes(ctx) ? ctx.scratch : arena)
          ->Allocate(dtype_, ActivatedShape(saved->pre_RI), "expert activation");
  fc1_products_.Forward(ctx.Of(OffloadModule::kExpertFc1), groups, in_RH, Fc1(fc1_.data),
                        saved->pre_RI, &saved->fc1);
  AddBias(ctx, groups, fc1_bias_, saved->pre_RI);
  if (gated_) {
    ops::GateForward(ctx.stream, gate_, saved->pre_RI, activated_RI);
  } else {
    ops::ActivationForward(ctx.stream, activation_, saved->pre_RI, activated_RI);
  }
  return activated_RI;
}

void Experts::Forward(const LayerContext& ctx, absl::Span<const ops::RowGroup> groups,
                      const Tensor& in_RH, const Tensor& out_RH, Saved* saved) const {
  Arena::Scope scope(ctx.scratch);
  saved->in_RH = keeps_codes(ctx) ? Tensor() : in_RH;
  const LayerContext of_activation = ctx.Of(OffloadModule::kMoeActivation);
  const Tensor activated_RI =
      Activate(ctx, groups, in_RH, recompute_ ? ctx.scratch : of_activation.saved, saved);
  saved->activated_RI = fc2_products_.keeps_codes(ctx) ? Tensor() : activated_RI;
  fc2_products_.Forward(of_activation, groups, activated_RI, fc2_.data, out_RH, &saved->fc2);
  if (is_first_) AddBias(ctx, groups, fc2_bias_, out_RH);
}

void Experts::Backward(const LayerContext& ctx, absl::Span<const ops::RowGroup> groups,
                       const Tensor& dout_RH, const Tensor& din_RH, Saved* saved) {
  if (recompute_) saved->activated_RI = Activate(ctx, groups, saved->in_RH, ctx.kept(), saved);
  saved->dout_RH = dout_RH;
  saved->dpre_RI = ctx.kept()->Allocate(dtype_, saved->pre_RI.shape(), "expert gradient");
  fc1_products_.Reserve(ctx, saved->dpre_RI, &saved->fc1);
  fc2_products_.Reserve(ctx, dout_RH, &saved->fc2);
  Arena::Scope scope(ctx.scratch);
  const Tensor dactivated_RI =
      ctx.scratch->Allocate(dtype_, ActivatedShape(saved->pre_RI), "expert gradient");
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
  AddBiasGradient(ctx, groups, saved.dout_RH, fc2_bias_);
  AddBiasGradient(ctx, groups, saved.dpre_RI, fc1_bias_);
  if (!fc2_.frozen) {
    fc2_products_.BackwardWeight(ctx, groups, saved.dout_RH, saved.activated_RI, fc2_.grad,
                                 saved.fc2);
  }
  if (!fc1_.frozen) {
    fc1_products_.BackwardWeight(ctx, groups, saved.dpre_RI, saved.in_RH, Fc1(fc1_.grad),
                                 saved.fc1);
  }
}

void Experts::AppendParameters(std::vector<Parameter*>* out) {
  out->push_back(&fc1_);
  out->push_back(&fc2_);
  if (!has_bias_) return;
  out->push_back(&fc1_bias_);
  out->push_back(&fc2_bias_);
}

}  // namespace megatron
