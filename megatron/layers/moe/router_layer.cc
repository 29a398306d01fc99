#include "megatron/layers/moe/router_layer.h"

#include <algorithm>

#include "megatron/layers/dropout_site.h"
#include "megatron/layers/linear_gradients.h"
#include "megatron/layers/moe/capacity.h"
#include "megatron/ops/dropout.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/linear.h"
#include "megatron/ops/moe/sinkhorn.h"

namespace megatron {
namespace {

Parameter MakeWeight(const MoeOptions& options, const std::string& name, int64_t hidden_size,
                     float init_std, const ProcessGroup& tensor_group) {
  Parameter weight;
  weight.name = name + ".weight";
  weight.sharding = Replicated({options.num_experts, hidden_size},
                               tensor_group.size() > 1 ? AxisSet{Axis::kTensor} : AxisSet{});
  weight.initializer = Initializer::Normal(init_std);
  weight.matrix = MatrixDims();
  return weight;
}

// The router as balance and z losses see it: without biases and groups.
ops::Router Unbiased(ops::Router router) {
  router.num_groups = router.group_topk = 1;
  return router;
}

}  // namespace

RouterLayer::RouterLayer(const TransformerOptions& options, const std::string& name, int64_t layer,
                         const ProcessGroup& tensor_group, const ProcessGroup& data_group)
    : options_(options.moe),
      name_(name),
      layer_(layer),
      data_group_(data_group),
      dtype_(options.dtype),
      weight_(MakeWeight(options.moe, name, options.hidden_size, options.init_std, tensor_group)) {
  if (!options.linear_bias) return;
  bias_.name = name + ".bias";
  bias_.weight_decay = false;
  bias_.sharding = Replicated({options.moe.num_experts}, weight_.sharding.partial);
}

Tensor RouterLayer::InFloat(const LayerContext& ctx, const Tensor& x) const {
  if (x.dtype() == DType::kFloat32) return x;
  const Tensor copy = ctx.scratch->Allocate(DType::kFloat32, x.shape(), "router input");
  ops::Copy(ctx.stream, x, copy);
  return copy;
}

void RouterLayer::Jitter(const LayerContext& ctx, const Tensor& x_NH, const Tensor& out_NH) const {
  const RoutedRows mine = RowsToRoute(ctx);
  ops::Dropout random;
  random.key = DeriveKey(ctx.seed, kPhiloxDropout, static_cast<uint64_t>(layer_),
                         static_cast<uint32_t>(DropoutSite::kRouterInput));
  random.sample_T = ctx.batch->sample_T.Slice(0, mine.begin, mine.end);
  random.position_T = ctx.batch->sample_position_T.Slice(0, mine.begin, mine.end);
  ops::Jitter(ctx.stream, options_.input_jitter_eps, random, x_NH, out_NH);
}

Tensor RouterLayer::Input(const LayerContext& ctx, const Tensor& x_NH) const {
  const Tensor in_NH = InFloat(ctx, x_NH);
  if (!jitters(ctx)) return in_NH;
  const Tensor jittered_NH = ctx.scratch->Allocate(DType::kFloat32, in_NH.shape(), "router input");
  Jitter(ctx, in_NH, jittered_NH);
  return jittered_NH;
}

Tensor RouterLayer::ChooseBalanced(const LayerContext& ctx, const Saved& saved) const {
  const int64_t samples = ctx.batch->num_samples, length = SampleLength(ctx);
  const int64_t experts = options_.num_experts;
  const Tensor logits_TE = ctx.scratch->Allocate(DType::kFloat32, {samples * length, experts},
                                                 "logits of whole samples");
  const Tensor bias_SE =
      ctx.scratch->Allocate(DType::kFloat32, {samples, experts}, "balancing biases");
  GatherRouted(ctx, saved.logits_NE, logits_TE);
  for (int64_t s = 0; s < samples; ++s) {
    ops::SinkhornBias(ctx.stream, logits_TE.Slice(0, s * length, (s + 1) * length),
                      bias_SE.Select(0, s));
  }
  ForEachRoutedRun(ctx, [&](int64_t whole, int64_t mine, int64_t count) {
    for (const int64_t end = whole + count; whole < end;) {
      const int64_t sample = whole / length, rows = std::min(end, (sample + 1) * length) - whole;
      const auto part = [&](const Tensor& x) { return x.Slice(0, mine, mine + rows); };
      ops::RouterForward(ctx.stream, options_.router, part(saved.logits_NE),
                         bias_SE.Select(0, sample), part(saved.chosen_NK),
                         part(saved.probability_NK));
      whole += rows;
      mine += rows;
    }
  });
  return bias_SE;
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
  ops::LinearForward(ctx.stream, Input(ctx, x_NH), InFloat(ctx, weight_.data),
                     has_bias() ? InFloat(ctx, bias_.data) : Tensor(), saved->logits_NE);
  Tensor bias = state_.bias_E;
  if (options_.sinkhorn && ctx.training) {
    bias = ChooseBalanced(ctx, *saved);
  } else {
    ops::RouterForward(ctx.stream, options_.router, saved->logits_NE, bias, saved->chosen_NK,
                       saved->probability_NK);
  }
  saved->expert_NK = saved->chosen_NK;
  if (options_.capacity_factor.has_value()) {
    saved->expert_NK = ctx.saved->Allocate(DType::kInt32, {rows, topk}, "experts within capacity");
    Drop(ctx, *saved);
  }
  if (observer_) observer_(*saved, bias);
  if (!ctx.training || ctx.has_backward) return;
  const Tensor none_NK =
      ctx.scratch->Allocate(DType::kFloat32, saved->probability_NK.shape(), "no gradient");
  const Tensor unused_NE =
      ctx.scratch->Allocate(DType::kFloat32, saved->logits_NE.shape(), "router gradient");
  ops::Zero(ctx.stream, none_NK);
  AddLosses(ctx, none_NK, *saved, unused_NE);
}

// An expert's capacity is shared out over whole samples, whose rows other ranks may hold.
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

void RouterLayer::CountUnits(const LayerContext& ctx, BalanceUnit unit, const Tensor& expert_NK,
                             const ops::RouterUnits& units, const Tensor& counts_UE) const {
  if (unit == BalanceUnit::kStep) {
    ops::CountChoices(ctx.stream, expert_NK, units, state_.so_far_E.View(counts_UE.shape()));
    ops::Copy(ctx.stream, state_.so_far_E.View(counts_UE.shape()), counts_UE);
    data_group_.AllReduce(counts_UE, ReduceOp::kSum, ctx.stream);
  } else {
    ops::Zero(ctx.stream, counts_UE);
    ops::CountChoices(ctx.stream, expert_NK, units, counts_UE);
  }
  ctx.tensor_group.AllReduce(counts_UE, ReduceOp::kSum, ctx.stream);
  ctx.context_group.AllReduce(counts_UE, ReduceOp::kSum, ctx.stream);
}

ops::RouterUnits RouterLayer::Units(const LayerContext& ctx, int64_t samples_of_unit) {
  const RoutedRows mine = RowsToRoute(ctx);
  const Tensor& number_T = ctx.batch->sample_number_T;
  if (number_T.empty()) return {mine.begin, samples_of_unit * SampleTokensHere(*ctx.batch)};
  return {0, samples_of_unit, number_T.Slice(0, mine.begin, mine.end)};
}

void RouterLayer::CountLoad(const LayerContext& ctx, const Saved& saved) const {
  const ops::RouterUnits all = Units(ctx, ctx.batch->num_samples);
  const auto add = [&](const Tensor& expert_NK, int64_t row) {
    ops::CountChoices(ctx.stream, expert_NK, all, state_.load_2E.Slice(0, row, row + 1));
  };
  add(saved.chosen_NK, 0);
  add(saved.expert_NK, 1);
}

void RouterLayer::CountMargins(const LayerContext& ctx, const Saved& saved) const {
  Arena::Scope scope(ctx.scratch);
  ops::Router next = options_.router;
  ++next.topk;
  const Shape shape{saved.logits_NE.dim(0), next.topk};
  const Tensor expert_NJ = ctx.scratch->Allocate(DType::kInt32, shape, "best experts");
  const Tensor score_NJ = ctx.scratch->Allocate(DType::kFloat32, shape, "best experts");
  ops::RouterForward(ctx.stream, next, saved.logits_NE, state_.bias_E, expert_NJ, score_NJ);
  ops::CountMargins(ctx.stream, saved.logits_NE, state_.bias_E, expert_NJ, state_.margins_EQ);
}

Tensor RouterLayer::UnbiasedChoices(const LayerContext& ctx, const Saved& saved) const {
  if (state_.bias_E.empty() && options_.router.num_groups == 1) return saved.chosen_NK;
  const Tensor expert_NK =
      ctx.scratch->Allocate(DType::kInt32, saved.chosen_NK.shape(), "unbiased choices");
  const Tensor probability_NK =
      ctx.scratch->Allocate(DType::kFloat32, expert_NK.shape(), "unbiased choices");
  ops::RouterForward(ctx.stream, Unbiased(options_.router), saved.logits_NE, Tensor(), expert_NK,
                     probability_NK);
  return expert_NK;
}

RouterLayer::Losses RouterLayer::FindLosses(const LayerContext& ctx, const BalanceLoss& loss,
                                            const Tensor& expert_NK) const {
  const int64_t samples = ctx.batch->num_samples;
  // Where samples differ in length, it is share_U that divides by it.
  const bool alike = ctx.batch->sample_number_T.empty();
  const int64_t length = alike ? SampleLength(ctx) : 1;
  const float sample_weight = ctx.batch->sample_weight;
  Losses losses;
  losses.z_factor = 1.0 / static_cast<double>(length);
  losses.terms.z_weight =
      options_.z_loss_coeff * sample_weight * static_cast<float>(losses.z_factor);
  losses.terms.units = Units(ctx, 1);
  losses.terms.share_U = ctx.batch->sample_share_S;
  if (loss.unit == BalanceUnit::kNone) return losses;
  CHECK(alike || loss.unit == BalanceUnit::kSample);
  const int64_t of_unit = loss.unit == BalanceUnit::kSample ? 1 : samples;
  losses.balance_factor = BalanceFactor(options_, of_unit * length, of_unit);
  // Choices are the mean of all micro-batches that were counted.
  if (loss.unit == BalanceUnit::kStep)
    losses.balance_factor /= static_cast<double>(++*state_.micro_batches * data_group_.size());
  losses.terms.balance_weight =
      loss.coeff * sample_weight * static_cast<float>(losses.balance_factor);
  losses.terms.units = Units(ctx, of_unit);
  losses.terms.counts_UE = ctx.scratch->Allocate(
      DType::kInt64, {samples / of_unit, options_.num_experts}, "expert counts");
  CountUnits(ctx, loss.unit, expert_NK, losses.terms.units, losses.terms.counts_UE);
  return losses;
}

// The op adds the gradient of one balance loss to that of the probabilities. Of further losses it
// is asked with probabilities that have no gradient.
void RouterLayer::AddFurtherLosses(const LayerContext& ctx, const Saved& saved,
                                   const Tensor& expert_NK, const Tensor& dlogits_NE) const {
  if (options_.further_balances.empty()) return;
  Arena::Scope scope(ctx.scratch);
  const Tensor none_NK =
      ctx.scratch->Allocate(DType::kFloat32, saved.probability_NK.shape(), "no gradient");
  const Tensor further_NE =
      ctx.scratch->Allocate(DType::kFloat32, dlogits_NE.shape(), "router gradient");
  const Tensor values_N2 =
      ctx.scratch->Allocate(DType::kFloat32, {dlogits_NE.dim(0), 2}, "router losses");
  ops::Zero(ctx.stream, none_NK);
  for (size_t i = 0; i < options_.further_balances.size(); ++i) {
    Arena::Scope counts(ctx.scratch);
    Losses losses = FindLosses(ctx, options_.further_balances[i], expert_NK);
    losses.terms.z_weight = 0;
    ops::RouterBackward(ctx.stream, options_.router, saved.logits_NE, saved.chosen_NK, none_NK,
                        losses.terms, further_NE, values_N2);
    ops::Add(ctx.stream, further_NE, dlogits_NE);
    ops::AddRouterLosses(ctx.stream, values_N2, losses.balance_factor, /*z_factor=*/0,
                         state_.losses_B2.Select(0, static_cast<int64_t>(i) + 1));
  }
}

void RouterLayer::AddLosses(const LayerContext& ctx, const Tensor& dprobability_NK,
                            const Saved& saved, const Tensor& dlogits_NE) const {
  Arena::Scope scope(ctx.scratch);
  const bool balances =
      options_.balance != BalanceUnit::kNone || !options_.further_balances.empty();
  const Tensor expert_NK = balances ? UnbiasedChoices(ctx, saved) : Tensor();
  const Losses losses = FindLosses(ctx, {options_.balance, options_.aux_loss_coeff}, expert_NK);
  const Tensor values_N2 =
      ctx.scratch->Allocate(DType::kFloat32, {dlogits_NE.dim(0), 2}, "router losses");
  ops::RouterBackward(ctx.stream, options_.router, saved.logits_NE, saved.chosen_NK,
                      dprobability_NK, losses.terms, dlogits_NE, values_N2);
  ops::AddRouterLosses(ctx.stream, values_N2, losses.balance_factor, losses.z_factor,
                       state_.losses_B2.Select(0, 0));
  AddFurtherLosses(ctx, saved, expert_NK, dlogits_NE);
  if (!state_.chosen_E.empty()) {
    ops::CountChoices(ctx.stream, saved.chosen_NK, Units(ctx, ctx.batch->num_samples),
                      state_.chosen_E.View({1, options_.num_experts}));
  }
  if (!state_.margins_EQ.empty()) CountMargins(ctx, saved);
  if (!state_.load_2E.empty()) CountLoad(ctx, saved);
}

void RouterLayer::Backward(const LayerContext& ctx, const Tensor& dprobability_NK,
                           const Tensor& dx_NH, const Saved& saved) {
  Arena::Scope scope(ctx.scratch);
  const Tensor dlogits_NE =
      ctx.scratch->Allocate(DType::kFloat32, saved.logits_NE.shape(), "router gradient");
  AddLosses(ctx, dprobability_NK, saved, dlogits_NE);
  const Tensor dbias_E = has_bias() ? bias_.grad : Tensor();
  if (!weight_.frozen || !dbias_E.empty())
    AddLinearGradients(ctx.stream, dlogits_NE, Input(ctx, saved.x_NH), weight_, dbias_E);
  const Tensor drouter_NH =
      ctx.scratch->Allocate(DType::kFloat32, dx_NH.shape(), "router input gradient");
  ops::LinearBackwardInput(ctx.stream, dlogits_NE, InFloat(ctx, weight_.data), drouter_NH);
  if (jitters(ctx)) Jitter(ctx, drouter_NH, drouter_NH);
  Tensor added_NH = drouter_NH;
  if (dtype_ != DType::kFloat32) {
    added_NH = ctx.scratch->Allocate(dtype_, dx_NH.shape(), "router input gradient");
    ops::Copy(ctx.stream, drouter_NH, added_NH);
  }
  ops::Add(ctx.stream, added_NH, dx_NH);
}

}  // namespace megatron
