#include "megatron/layers/moe/host_dispatcher.h"

#include "megatron/ops/moe/host_choices.h"
#include "megatron/ops/moe/permute.h"

namespace megatron {
namespace {

MoeOptions HostsAsExperts(const MoeOptions& options, int hosts) {
  MoeOptions between;
  between.num_experts = hosts;
  between.router.topk = options.router.topk;
  return between;
}

ExpertGroups BetweenHosts(const ExpertGroups& groups) {
  ExpertGroups between;
  between.expert = between.model = groups.across_hosts;
  return between;
}

}  // namespace

HostDispatcher::HostDispatcher(const MoeOptions& options, const ExpertGroups& groups)
    : experts_per_host_(options.num_experts / groups.across_hosts.size()),
      first_expert_(experts_per_host_ * groups.across_hosts.rank()),
      between_hosts_(HostsAsExperts(options, groups.across_hosts.size()), BetweenHosts(groups)) {}

void HostDispatcher::MakePlan(const LayerContext& ctx, const Tensor& expert_NK, Plan* plan) const {
  Arena::Scope scope(ctx.scratch);
  const Tensor host_NK =
      ctx.scratch->Allocate(DType::kInt32, expert_NK.shape(), "hosts of choices");
  ops::FirstChoiceOfHost(ctx.stream, expert_NK, experts_per_host_, host_NK);
  between_hosts_.MakePlan(ctx, host_NK, plan);
}

AsyncCall HostDispatcher::ToHosts(const LayerContext& ctx, const Plan& plan, const Tensor& x_NH,
                                  Arena* arena, Tensor* received_RH) const {
  const Tensor sent_SH =
      ctx.scratch->Allocate(x_NH.dtype(), {plan.num_sent(), x_NH.dim(1)}, "rows to hosts");
  ops::Permute(ctx.stream, x_NH, plan.place_NKC, sent_SH);
  return between_hosts_.ToExperts(ctx, plan, sent_SH, arena, received_RH).front();
}

AsyncCall HostDispatcher::FromHosts(const LayerContext& ctx, const Plan& plan,
                                    const Tensor& rows_RH, Tensor* returned_SH) const {
  *returned_SH =
      ctx.scratch->Allocate(rows_RH.dtype(), {plan.num_sent(), rows_RH.dim(1)}, "rows returned");
  return between_hosts_.FromExperts(ctx, plan, /*part=*/0, rows_RH, *returned_SH);
}

void HostDispatcher::SumOverHosts(const LayerContext& ctx, const Plan& plan,
                                  const Tensor& returned_SH, const Tensor& y_NH) const {
  ops::PermuteBackward(ctx.stream, returned_SH, plan.place_NKC, y_NH);
}

Tensor HostDispatcher::Packed(const LayerContext& ctx, const Tensor& expert_NK,
                              const Tensor& probability_NK) const {
  const Tensor packed = ctx.scratch->Allocate(
      DType::kFloat32, {expert_NK.dim(0), 2 * expert_NK.dim(1)}, "packed choices");
  ops::PackChoices(ctx.stream, expert_NK, probability_NK, packed);
  return packed;
}

void HostDispatcher::Unpack(const LayerContext& ctx, const Tensor& packed, const Tensor& expert_RK,
                            const Tensor& probability_RK) const {
  ops::UnpackChoices(ctx.stream, packed, first_expert_, experts_per_host_, expert_RK,
                     probability_RK);
}

}  // namespace megatron
