#include "megatron/layers/moe/experts.h"

#include "megatron/ops/activation.h"
#include "megatron/ops/bias_gradient.h"
#include "megatron/ops/dropout.h"

namespace megatron {
namespace {

constexpr char kActivation[] = "expert activation", kGradient[] = "expert gradient";

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

Tensor Experts::AllocatePre(Arena* arena, int64_t rows) const {
  return arena->Allocate(dtype_, {rows, Fc1(fc1_.data).dim(1)}, "expert pre-activation");
}

Tensor Experts::AllocateActivated(Arena* arena, int64_t rows, const char* name) const {
  const int64_t width = Fc1(fc1_.data).dim(1);
  return arena->Allocate(dtype_, {rows, gated_ ? width / 2 : width}, name);
}

void Experts::Activate(const LayerContext& ctx, const ExpertPart& part, const Tensor& in_RH,
                       const Tensor& pre_RI, const Tensor& activated_RI, Saved* saved) const {
  fc1_products_.Forward(ctx.Of(OffloadModule::kExpertFc1), part.groups, part.Of(in_RH),
                        Fc1(fc1_.data), pre_RI, &saved->fc1, part.experts);
  AddBias(ctx, part.groups, fc1_bias_, pre_RI);
  if (gated_) {
    ops::GateForward(ctx.stream, gate_, pre_RI, activated_RI);
  } else {
    ops::ActivationForward(ctx.stream, activation_, pre_RI, activated_RI);
  }
}

void Experts::BeginForward(const LayerContext& ctx, const Tensor& in_RH, Saved* saved) const {
  saved->in_RH = keeps_codes(ctx) ? Tensor() : in_RH;
  saved->pre_RI = saved->activated_RI = Tensor();
  if (recompute_) return;
  Arena* const arena = ctx.SavedBy(OffloadModule::kMoeActivation);
  saved->pre_RI = AllocatePre(arena, in_RH.dim(0));
  if (!fc2_products_.keeps_codes(ctx))
    saved->activated_RI = AllocateActivated(arena, in_RH.dim(0), kActivation);
}

void Experts::Forward(const LayerContext& ctx, const ExpertPart& part, const Tensor& in_RH,
                      const Tensor& out_RH, Saved* saved) const {
  Arena::Scope scope(ctx.scratch);
  const int64_t rows = part.end - part.begin;
  const Tensor pre_RI =
      saved->pre_RI.empty() ? AllocatePre(ctx.scratch, rows) : part.Of(saved->pre_RI);
  const Tensor activated_RI = saved->activated_RI.empty()
                                  ? AllocateActivated(ctx.scratch, rows, kActivation)
                                  : part.Of(saved->activated_RI);
  Activate(ctx, part, in_RH, pre_RI, activated_RI, saved);
  fc2_products_.Forward(ctx.Of(OffloadModule::kMoeActivation), part.groups, activated_RI, fc2_.data,
                        part.Of(out_RH), &saved->fc2, part.experts);
  if (is_first_) AddBias(ctx, part.groups, fc2_bias_, part.Of(out_RH));
}

void Experts::BeginBackward(const LayerContext& ctx, absl::Span<const ExpertPart> parts,
                            const Tensor& dout_RH, Saved* saved) const {
  if (recompute_) {
    saved->pre_RI = AllocatePre(ctx.kept(), dout_RH.dim(0));
    saved->activated_RI = AllocateActivated(ctx.kept(), dout_RH.dim(0), kActivation);
    for (const ExpertPart& part : parts) {
      Activate(ctx, part, saved->in_RH, part.Of(saved->pre_RI), part.Of(saved->activated_RI),
               saved);
    }
  }
  saved->dout_RH = dout_RH;
  saved->dpre_RI = ctx.kept()->Allocate(dtype_, saved->pre_RI.shape(), kGradient);
  fc1_products_.Reserve(ctx, saved->dpre_RI, &saved->fc1);
  fc2_products_.Reserve(ctx, dout_RH, &saved->fc2);
}

void Experts::Backward(const LayerContext& ctx, const ExpertPart& part, const Tensor& din_RH,
                       Saved* saved) {
  Arena::Scope scope(ctx.scratch);
  const Tensor pre_RI = part.Of(saved->pre_RI), dpre_RI = part.Of(saved->dpre_RI);
  const Tensor dactivated_RI = AllocateActivated(ctx.scratch, part.end - part.begin, kGradient);
  fc2_products_.BackwardInput(ctx, part.groups, part.Of(saved->dout_RH), fc2_.data, dactivated_RI,
                              &saved->fc2, part.experts);
  if (gated_) {
    ops::GateBackward(ctx.stream, gate_, dactivated_RI, pre_RI, dpre_RI);
  } else {
    ops::ActivationBackward(ctx.stream, activation_, dactivated_RI, pre_RI, dpre_RI);
  }
  fc1_products_.BackwardInput(ctx, part.groups, dpre_RI, Fc1(fc1_.data), part.Of(din_RH),
                              &saved->fc1, part.experts);
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
