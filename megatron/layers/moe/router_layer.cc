#include "megatron/layers/moe/router_layer.h"

#include <algorithm>

#include "megatron/layers/moe/capacity.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/linear.h"

namespace megatron {
namespace {

Parameter MakeWeight(const MoeOptions& options, const std::string& name, int64_t hidden_size,
                     float init_std, const ProcessGroup& tensor_group) {
  Parameter weight;
  weight.name = name + ".weight";
  weight.sharding = Replicated({options.num_experts, hidden_size},
                               tensor_group.size() > 1 ? AxisSet{Axis::kTensor} : AxisSet{});
  weight.initializer = Initializer::Normal(init_std);
  return weight;
}

// How balance and z losses look at choices: as if there were neither bias nor groups.
ops::Router Unbiased(ops::Router router) {
  router.num_groups = router.group_topk = 1;
  return router;
}

// Over which the balance is struck.
int64_t SamplesOfUnit(const MoeOptions& options, const MicroBatch& batch) {
  return options.balance == BalanceUnit::kSample ? 1 : batch.num_samples;
}

}  // namespace

RouterLayer::RouterLayer(const MoeOptions& options, const std::string& name, int64_t hidden_size,
                         float init_std, DType dtype, const ProcessGroup& tensor_group)
    : options_(options),
      name_(name),
      dtype_(dtype),
      weight_(MakeWeight(options, name, hidden_size, init_std, tensor_group)) {}

Tensor RouterLayer::InFloat(const LayerContext& ctx, const Tensor& x) const {
  if (x.dtype() == DType::kFloat32) return x;
  const Tensor copy = ctx.scratch->Allocate(DType::kFloat32, x.shape(), "router input");
  ops::Copy(ctx.stream, x, copy);
  return copy;
}

void RouterLayer::Forward(const LayerContext& ctx, const Tensor& x_NH, Saved* saved) const {
  Arena::Scope scope(ctx.scratch);
  const int64_t rows = x_NH.dim(0), topk = options_.router.topk;
  saved->x_NH = x_NH;
  saved->logits_NE =
      ctx.saved->Allocate(DType::kFloat32, {rows, options_.num_experts}, "router logits");
  saved->chosen_NK = ctx.saved->Allocate(DType::kInt32, {rows, topk}, "chosen experts");
  saved->probability_NK =
      ctx.saved->Allocate(DType::kFloat32, {rows, topk}, "router probabilities");
  ops::LinearForward(ctx.stream, InFloat(ctx, x_NH), InFloat(ctx, weight_.data), Tensor(),
                     saved->logits_NE);
  ops::RouterForward(ctx.stream, options_.router, saved->logits_NE, state_.bias_E, saved->chosen_NK,
                     saved->probability_NK);
  saved->expert_NK = saved->chosen_NK;
  if (options_.capacity_factor.has_value()) {
    saved->expert_NK = ctx.saved->Allocate(DType::kInt32, {rows, topk}, "experts within capacity");
    Drop(ctx, *saved);
  }
  if (observer_) observer_(*saved, state_.bias_E);
}

// Which choices an expert takes is decided over whole samples, whose rows other ranks may hold.
void RouterLayer::Drop(const LayerContext& ctx, const Saved& saved) const {
  Arena::Scope scope(ctx.scratch);
  const int64_t tokens = ctx.batch->num_tokens() * ctx.context_group.size();
  const int64_t length = SampleLength(ctx), topk = options_.router.topk;
  const Tensor expert_TK = ctx.scratch->Allocate(DType::kInt32, {tokens, topk}, "choices");
  const Tensor probability_TK = ctx.scratch->Allocate(DType::kFloat32, {tokens, topk}, "choices");
  GatherRouted(ctx, saved.chosen_NK, expert_TK);
  GatherRouted(ctx, saved.probability_NK, probability_TK);
  ops::DropOverCapacity(ctx.stream, options_.drop_policy, ExpertCapacity(options_, length),
                        {0, length}, probability_TK, expert_TK);
  TakeRouted(ctx, expert_TK, saved.expert_NK);
}

// The choices of all of a unit's tokens are counted, wherever they are.
ops::RouterLosses RouterLayer::Losses(const LayerContext& ctx, const Saved& saved) const {
  const int64_t samples = ctx.batch->num_samples, here = SampleTokensHere(*ctx.batch);
  const int64_t length = SampleLength(ctx);
  ops::RouterLosses losses;
  losses.z_weight = options_.z_loss_coeff * ctx.batch->sample_weight / static_cast<float>(length);
  if (options_.balance == BalanceUnit::kNone) return losses;
  const int64_t of_unit = SamplesOfUnit(options_, *ctx.batch), units = samples / of_unit;
  losses.units = {RowsToRoute(ctx).begin, of_unit * here};
  losses.counts_UE =
      ctx.scratch->Allocate(DType::kInt64, {units, options_.num_experts}, "expert counts");
  losses.balance_weight = options_.aux_loss_coeff * ctx.batch->sample_weight *
                          static_cast<float>(BalanceFactor(options_, of_unit * length, of_unit));
  Tensor expert_NK = saved.chosen_NK;
  if (!state_.bias_E.empty() || options_.router.num_groups > 1) {
    expert_NK = ctx.scratch->Allocate(DType::kInt32, expert_NK.shape(), "unbiased choices");
    const Tensor probability_NK =
        ctx.scratch->Allocate(DType::kFloat32, expert_NK.shape(), "unbiased choices");
    ops::RouterForward(ctx.stream, Unbiased(options_.router), saved.logits_NE, Tensor(), expert_NK,
                       probability_NK);
  }
  ops::Zero(ctx.stream, losses.counts_UE);
  ops::CountChoices(ctx.stream, expert_NK, losses.units, losses.counts_UE);
  ctx.tensor_group.AllReduce(losses.counts_UE, ReduceOp::kSum, ctx.stream);
  ctx.context_group.AllReduce(losses.counts_UE, ReduceOp::kSum, ctx.stream);
  return losses;
}

void RouterLayer::Backward(const LayerContext& ctx, const Tensor& dprobability_NK,
                           const Tensor& dx_NH, const Saved& saved) {
  Arena::Scope scope(ctx.scratch);
  const int64_t rows = dx_NH.dim(0);
  const ops::RouterLosses losses = Losses(ctx, saved);
  const Tensor dlogits_NE =
      ctx.scratch->Allocate(DType::kFloat32, saved.logits_NE.shape(), "router gradient");
  const Tensor values_N2 = ctx.scratch->Allocate(DType::kFloat32, {rows, 2}, "router losses");
  ops::RouterBackward(ctx.stream, options_.router, saved.logits_NE, saved.chosen_NK,
                      dprobability_NK, losses, dlogits_NE, values_N2);
  const int64_t length = SampleLength(ctx);
  const int64_t of_unit = SamplesOfUnit(options_, *ctx.batch);
  ops::AddRouterLosses(ctx.stream, values_N2, BalanceFactor(options_, of_unit * length, of_unit),
                       1.0 / static_cast<double>(length), state_.losses_2);
  if (!state_.chosen_E.empty()) {
    ops::CountChoices(ctx.stream, saved.chosen_NK, {0, std::max<int64_t>(1, rows)},
                      state_.chosen_E.View({1, options_.num_experts}));
  }
  const Tensor x_NH = InFloat(ctx, saved.x_NH);
  ops::LinearBackwardWeight(ctx.stream, dlogits_NE, x_NH, weight_.grad, Tensor());
  const Tensor drouter_NH =
      ctx.scratch->Allocate(DType::kFloat32, dx_NH.shape(), "router input gradient");
  ops::LinearBackwardInput(ctx.stream, dlogits_NE, InFloat(ctx, weight_.data), drouter_NH);
  Tensor added_NH = drouter_NH;
  if (dtype_ != DType::kFloat32) {
    added_NH = ctx.scratch->Allocate(dtype_, dx_NH.shape(), "router input gradient");
    ops::Copy(ctx.stream, drouter_NH, added_NH);
  }
  ops::Add(ctx.stream, added_NH, dx_NH);
}

}  // namespace megatron
