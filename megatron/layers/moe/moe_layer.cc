#include "megatron/layers/moe/moe_layer.h"

#include "glog/logging.h"
#include "megatron/comm/overlap/async_group.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/moe/permute.h"
#include "megatron/tensor/trace/trace.h"

namespace megatron {
namespace {

// What is between an expert's matrices is not recomputed by itself where all is.
TransformerOptions ExpertOptions(TransformerOptions options) {
  if (options.recompute.experts) options.recompute.mlp = false;
  return options;
}

TransformerOptions SharedOptions(const TransformerOptions& options) {
  TransformerOptions shared = ExpertOptions(options);
  shared.ffn_hidden_size = options.moe.shared_ffn_hidden_size;
  return shared;
}

}  // namespace

MoeLayer::MoeLayer(const TransformerOptions& options, const std::string& name, int64_t layer,
                   const ProcessGroup& tensor_group, const ExpertGroups& groups)
    : dtype_(options.dtype),
      hidden_size_(options.hidden_size),
      recompute_(options.recompute.experts),
      router_(options, name + ".router", layer, tensor_group, groups.data),
      hosts_(groups.dispatches_by_host() ? std::make_unique<HostDispatcher>(options.moe, groups)
                                         : nullptr),
      dispatcher_(options.moe, groups),
      experts_(ExpertOptions(options), name + ".experts.experts", groups) {
  if (options.moe.shared_ffn_hidden_size > 0) {
    CHECK(!options.has_mlp_bias()) << name << ": a shared expert has no biases";
    shared_ = std::make_unique<Mlp>(SharedOptions(options), name + ".shared_experts", tensor_group,
                                    /*input_outlives_forward=*/true);
  }
  if (options.moe.shared_expert_gate)
    gate_ = std::make_unique<SharedExpertGate>(options, name + ".shared_experts", tensor_group);
}

Tensor MoeLayer::Routed(const LayerContext& ctx, const Tensor& x_TH) const {
  if (ctx.sequence_parallel) return x_TH;
  const RoutedRows mine = RowsToRoute(ctx);
  return x_TH.Slice(0, mine.begin, mine.end);
}

// Sums in which all terms but one are zero are exact, and take any number of rows from each rank.
void MoeLayer::Share(const LayerContext& ctx, const Tensor& x_TH) const {
  if (ctx.sequence_parallel || ctx.tensor_group.size() == 1) return;
  const RoutedRows mine = RowsToRoute(ctx);
  ops::Zero(ctx.stream, x_TH.Slice(0, 0, mine.begin));
  ops::Zero(ctx.stream, x_TH.Slice(0, mine.end, x_TH.dim(0)));
  ctx.tensor_group.AllReduce(x_TH, ReduceOp::kSum, ctx.stream);
}

Tensor MoeLayer::BeginShared(const LayerContext& ctx, const Tensor& x_TH, Saved* saved) const {
  if (shared_ == nullptr) return Tensor();
  Arena* const arena = gate_ != nullptr ? ctx.saved : ctx.scratch;
  const Tensor shared_TH = arena->Allocate(dtype_, x_TH.shape(), "shared expert");
  shared_->BeginForward(ctx, x_TH, shared_TH, &saved->shared);
  return shared_TH;
}

void MoeLayer::EndShared(const LayerContext& ctx, const Tensor& shared_TH, Saved* saved) const {
  if (shared_ != nullptr) shared_->EndForward(ctx, shared_TH, &saved->shared);
}

Tensor MoeLayer::SharedGradient(const LayerContext& ctx, const Tensor& dy_TH, Saved* saved) {
  if (shared_ == nullptr) return Tensor();
  const Tensor dshared_TH = ctx.scratch->Allocate(dtype_, dy_TH.shape(), "shared expert gradient");
  saved->shared.fc1.x_TI = saved->x_TH;
  if (gate_ == nullptr) {
    shared_->Backward(ctx, dy_TH, dshared_TH, &saved->shared);
    return dshared_TH;
  }
  const Tensor dgated_TH = ctx.kept()->Allocate(dtype_, dy_TH.shape(), "shared expert gradient");
  const Tensor dlogits_T1 = gate_->BackwardOutput(ctx, dy_TH, dgated_TH, saved->gate);
  shared_->Backward(ctx, dgated_TH, dshared_TH, &saved->shared);
  gate_->BackwardInput(ctx, dlogits_T1, saved->x_TH, dshared_TH);
  return dshared_TH;
}

// What is recomputed lies in an arena of its own: the parts of the layer release what they take of
// ctx.scratch when they return.
void MoeLayer::Forward(const LayerContext& ctx, const Tensor& x_TH, const Tensor& y_TH,
                       Saved* saved) const {
  if (!recompute_ || !ctx.training) return ForwardOnce(ctx, x_TH, y_TH, saved);
  Arena::Scope scope(ctx.recompute);
  ForwardOnce(ctx.SavingIn(ctx.recompute), x_TH, y_TH, saved);
}

void MoeLayer::Backward(const LayerContext& ctx, const Tensor& dy_TH, const Tensor& dx_TH,
                        Saved* saved) {
  if (!recompute_) return BackwardOnce(ctx, dy_TH, dx_TH, saved);
  Arena::Scope scope(ctx.recompute);
  {
    const TraceSpan span(ctx.stream, "recompute");
    Arena::Scope output_scope(ctx.scratch);
    const LayerContext recomputing = ctx.SavingIn(ctx.defers() ? ctx.deferred : ctx.recompute);
    // The output itself is not needed any more, but has to be written somewhere.
    const Tensor y_TH = ctx.scratch->Allocate(dtype_, dy_TH.shape(), "recomputed output");
    ForwardOnce(recomputing, saved->x_TH, y_TH, saved);
  }
  BackwardOnce(ctx, dy_TH, dx_TH, saved);
}

void MoeLayer::ForwardOnce(const LayerContext& ctx, const Tensor& x_TH, const Tensor& y_TH,
                           Saved* saved) const {
  const TraceSpan span(ctx.stream, "moe");
  Arena::Scope scope(ctx.scratch);
  saved->x_TH = x_TH;
  const Tensor x_NH = Routed(ctx, x_TH);
  router_.Forward(ctx, x_NH, &saved->router);
  Tensor x_MH = x_NH, expert_MK = saved->router.expert_NK, y_MH = Routed(ctx, y_TH), shared_TH;
  saved->probability_MK = saved->router.probability_NK;
  AsyncCall arriving;
  if (hosts_ != nullptr) {
    hosts_->MakePlan(ctx, expert_MK, &saved->hosts);
    const int64_t rows = saved->hosts.num_received(), topk = expert_MK.dim(1);
    const Tensor packed = hosts_->Packed(ctx, expert_MK, saved->probability_MK);
    expert_MK = ctx.scratch->Allocate(DType::kInt32, {rows, topk}, "choices on the host");
    saved->probability_MK =
        ctx.saved->Allocate(DType::kFloat32, {rows, topk}, "probabilities on the host");
    Tensor packed_here;
    const AsyncCall choices = hosts_->ToHosts(ctx, saved->hosts, packed, ctx.scratch, &packed_here);
    arriving = hosts_->ToHosts(ctx, saved->hosts, x_NH, ctx.scratch, &x_MH);
    shared_TH = BeginShared(ctx, x_TH, saved);
    choices.Wait();
    hosts_->Unpack(ctx, packed_here, expert_MK, saved->probability_MK);
    y_MH = ctx.scratch->Allocate(dtype_, {rows, hidden_size_}, "sums of the host");
  }
  TokenDispatcher::Plan& plan = saved->plan;
  dispatcher_.MakePlan(ctx, expert_MK, &plan);
  // The experts' inputs, or codes of them, are kept here; their outputs are sent back and kept by
  // the rank that asked.
  Arena* const in_arena =
      experts_.keeps_codes(ctx) ? ctx.scratch : ctx.SavedBy(OffloadModule::kExpertFc1);
  Arena* const sent_arena = dispatcher_.alone() ? in_arena : ctx.scratch;
  Arena* const out_arena = dispatcher_.alone() ? ctx.saved : ctx.scratch;
  const Tensor sent_SH =
      sent_arena->Allocate(dtype_, {plan.num_sent(), hidden_size_}, "rows of experts");
  if (dispatcher_.pads()) ops::Zero(ctx.stream, sent_SH);
  arriving.Wait();
  ops::Permute(ctx.stream, x_MH, plan.place_NKC, sent_SH);
  Tensor in_RH;
  const std::vector<AsyncCall> sending =
      dispatcher_.ToExperts(ctx, plan, sent_SH, in_arena, &in_RH);
  if (hosts_ == nullptr) shared_TH = BeginShared(ctx, x_TH, saved);
  const Tensor out_RH = out_arena->Allocate(dtype_, in_RH.shape(), "rows returned");
  saved->returned_SH =
      dispatcher_.alone() ? out_RH : ctx.saved->Allocate(dtype_, sent_SH.shape(), "rows returned");
  experts_.BeginForward(ctx, in_RH, &saved->experts);
  std::vector<AsyncCall> returning;
  for (size_t i = 0; i < plan.parts.size(); ++i) {
    sending[i].Wait();
    experts_.Forward(ctx, plan.parts[i], in_RH, out_RH, &saved->experts);
    returning.push_back(dispatcher_.FromExperts(ctx, plan, i, out_RH, saved->returned_SH));
  }
  if (hosts_ == nullptr) EndShared(ctx, shared_TH, saved);
  for (const AsyncCall& call : returning) call.Wait();
  ops::Unpermute(ctx.stream, saved->returned_SH, plan.place_NKC, saved->probability_MK, y_MH);
  if (hosts_ != nullptr) {
    Tensor sums;
    const AsyncCall from_hosts = hosts_->FromHosts(ctx, saved->hosts, y_MH, &sums);
    EndShared(ctx, shared_TH, saved);
    from_hosts.Wait();
    hosts_->SumOverHosts(ctx, saved->hosts, sums, Routed(ctx, y_TH));
  }
  Share(ctx, y_TH);
  if (gate_ != nullptr) {
    gate_->Forward(ctx, x_TH, shared_TH, y_TH, &saved->gate);
  } else if (shared_ != nullptr) {
    ops::Add(ctx.stream, shared_TH, y_TH);
  }
}

void MoeLayer::BackwardOnce(const LayerContext& ctx, const Tensor& dy_TH, const Tensor& dx_TH,
                            Saved* saved) {
  const TraceSpan span(ctx.stream, "moe");
  Arena::Scope scope(ctx.scratch);
  const TokenDispatcher::Plan& plan = saved->plan;
  const Tensor dx_NH = Routed(ctx, dx_TH);
  saved->router.x_NH = Routed(ctx, saved->x_TH);
  Arena* const returned_arena = dispatcher_.alone() ? ctx.kept() : ctx.scratch;
  const Tensor dreturned_SH =
      returned_arena->Allocate(dtype_, saved->returned_SH.shape(), "rows of gradients");
  const Tensor dprobability_NK = ctx.scratch->Allocate(
      DType::kFloat32, saved->router.probability_NK.shape(), "probability gradient");
  Tensor dy_MH = Routed(ctx, dy_TH), dx_MH = dx_NH, dprobability_MK = dprobability_NK, dshared_TH;
  if (hosts_ != nullptr) {
    const AsyncCall sending =
        hosts_->ToHosts(ctx, saved->hosts, Routed(ctx, dy_TH), ctx.scratch, &dy_MH);
    dshared_TH = SharedGradient(ctx, dy_TH, saved);
    sending.Wait();
    dx_MH = ctx.scratch->Allocate(dtype_, dy_MH.shape(), "gradients of the host");
    dprobability_MK = ctx.scratch->Allocate(DType::kFloat32, saved->probability_MK.shape(),
                                            "probability gradients of the host");
  }
  if (dispatcher_.pads()) ops::Zero(ctx.stream, dreturned_SH);
  ops::UnpermuteBackward(ctx.stream, dy_MH, saved->returned_SH, plan.place_NKC,
                         saved->probability_MK, dreturned_SH, dprobability_MK);
  AsyncCall returning_probabilities;
  Tensor dprobability_of_hosts;
  if (hosts_ != nullptr) {
    returning_probabilities =
        hosts_->FromHosts(ctx, saved->hosts, dprobability_MK, &dprobability_of_hosts);
  }
  Tensor dout_RH;
  const std::vector<AsyncCall> sending =
      dispatcher_.ToExperts(ctx, plan, dreturned_SH, ctx.kept(), &dout_RH);
  if (hosts_ == nullptr) dshared_TH = SharedGradient(ctx, dy_TH, saved);
  experts_.BeginBackward(ctx, plan.parts, dout_RH, &saved->experts);
  const Tensor din_RH = ctx.scratch->Allocate(dtype_, dout_RH.shape(), "rows of gradients");
  // A part's gradients have been sent when others come back in their places.
  const Tensor dsent_SH = dispatcher_.alone() ? din_RH : dreturned_SH;
  std::vector<AsyncCall> returning;
  for (size_t i = 0; i < plan.parts.size(); ++i) {
    sending[i].Wait();
    experts_.Backward(ctx, plan.parts[i], din_RH, &saved->experts);
    returning.push_back(dispatcher_.FromExperts(ctx, plan, i, din_RH, dsent_SH));
  }
  Tensor dx_of_hosts;
  if (hosts_ != nullptr) {
    for (const AsyncCall& call : returning) call.Wait();
    ops::PermuteBackward(ctx.stream, dsent_SH, plan.place_NKC, dx_MH);
    returning = {hosts_->FromHosts(ctx, saved->hosts, dx_MH, &dx_of_hosts)};
    returning_probabilities.Wait();
    // A choice is on one host, and 0 on the others, so these sums are exact.
    hosts_->SumOverHosts(ctx, saved->hosts, dprobability_of_hosts, dprobability_NK);
  }
  if (!ctx.defers()) experts_.BackwardWeight(ctx, plan.groups, saved->experts);
  for (const AsyncCall& call : returning) call.Wait();
  if (hosts_ != nullptr) {
    hosts_->SumOverHosts(ctx, saved->hosts, dx_of_hosts, dx_NH);
  } else {
    ops::PermuteBackward(ctx.stream, dsent_SH, plan.place_NKC, dx_NH);
  }
  router_.Backward(ctx, dprobability_NK, dx_NH, saved->router);
  Share(ctx, dx_TH);
  if (shared_ != nullptr) ops::Add(ctx.stream, dshared_TH, dx_TH);
}

void MoeLayer::BackwardWeight(const LayerContext& ctx, Saved* saved) {
  experts_.BackwardWeight(ctx, saved->plan.groups, saved->experts);
  if (shared_ != nullptr) shared_->BackwardWeight(ctx, &saved->shared);
}

void MoeLayer::AppendParameters(std::vector<Parameter*>* out) {
  router_.AppendParameters(out);
  experts_.AppendParameters(out);
  if (shared_ != nullptr) shared_->AppendParameters(out);
  if (gate_ != nullptr) gate_->AppendParameters(out);
}

}  // namespace megatron
