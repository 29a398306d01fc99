// Deduplicated dispatch: brings the row of each token to every host that has experts of it, once,
// however many of them it goes to there, and the sums of the hosts back.
//
//   token ──► ranks of its place on the hosts ──► experts of each host (token_dispatcher.h)
//   y = Σ over hosts ◄── Σ p · expert(x) over the experts of a host
//
// A rank sends to the ranks in its place on all hosts. There the rows that arrive are those to
// route within the host; the tokens' choices travel with them. On the way back the rank that passed
// a row on sums the weighted results of its host's experts in the order of choices, rounds the sum
// to the rows' type, and sends it to the token's rank, which sums over hosts in the order in which
// the token's choices name them first. The gradients of the rows are summed in the same two steps.
// These are other roundings than without hosts, where all choices are summed at once, and they
// depend on nothing but the choices.
//
// Between hosts each host is to the dispatch what an expert is within one, with one difference: a
// token chooses it once.
//
// Legend: N rows that this rank routes, S rows it sends, R rows it receives, K choices per token,
// H hidden, or any other number of columns.
#ifndef MEGATRON_LAYERS_MOE_HOST_DISPATCHER_H_
#define MEGATRON_LAYERS_MOE_HOST_DISPATCHER_H_

#include <cstdint>

#include "megatron/comm/overlap/async_group.h"
#include "megatron/layers/layer_context.h"
#include "megatron/layers/moe/expert_groups.h"
#include "megatron/layers/moe/moe_options.h"
#include "megatron/layers/moe/token_dispatcher.h"

namespace megatron {

class HostDispatcher {
 public:
  using Plan = TokenDispatcher::Plan;

  // The groups dispatch by host.
  HostDispatcher(const MoeOptions& options, const ExpertGroups& groups);

  // `expert` has -1 for dropped choices. Ranks of a group work in step.
  void MakePlan(const LayerContext& ctx, const Tensor& expert_NK, Plan* plan) const;

  // Starts to write *received, the rows of x that come to this rank, allocated in `arena`. What is
  // sent lies in ctx.scratch. `plan` lives until the call has been waited for.
  [[nodiscard]] AsyncCall ToHosts(const LayerContext& ctx, const Plan& plan, const Tensor& x_NH,
                                  Arena* arena, Tensor* received_RH) const;
  // Starts to write *returned, the rows of the way back, in ctx.scratch.
  [[nodiscard]] AsyncCall FromHosts(const LayerContext& ctx, const Plan& plan,
                                    const Tensor& rows_RH, Tensor* returned_SH) const;
  // y (=): the sums of the rows that have come back for each token.
  void SumOverHosts(const LayerContext& ctx, const Plan& plan, const Tensor& returned_SH,
                    const Tensor& y_NH) const;

  // Returns the tokens' choices as rows for ToHosts, in ctx.scratch.
  Tensor Packed(const LayerContext& ctx, const Tensor& expert_NK,
                const Tensor& probability_NK) const;
  // Takes what ToHosts brought apart. Experts count from the first one of this host; those
  // elsewhere are -1, as dropped choices are.
  void Unpack(const LayerContext& ctx, const Tensor& packed, const Tensor& expert_RK,
              const Tensor& probability_RK) const;

 private:
  int64_t experts_per_host_, first_expert_;
  TokenDispatcher between_hosts_;
};

}  // namespace megatron

#endif  // MEGATRON_LAYERS_MOE_HOST_DISPATCHER_H_
