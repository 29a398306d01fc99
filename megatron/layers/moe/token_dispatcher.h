// Brings the rows of tokens to the ranks that hold their experts, and back: one all-to-all each
// way.
//
// Rows are sent in the order of (rank, expert, token). Where an expert is cut over several ranks,
// each of them gets every row and gives back a summand of the result. What arrives is in the order
// of (sender, expert, token): groups of rows by expert, which the experts' products take as they
// are.
//
// The number of rows that arrive is not known before the step. Memory is planned for the most there
// can be: all tokens of the ranks that share the experts choose this rank's (or as many as its
// capacity takes).
//
// Legend: N rows that this rank routes, S rows it sends, R rows it receives, H hidden, K experts a
// token, C ranks that hold parts of one expert.
#ifndef MEGATRON_LAYERS_MOE_TOKEN_DISPATCHER_H_
#define MEGATRON_LAYERS_MOE_TOKEN_DISPATCHER_H_

#include <cstdint>
#include <vector>

#include "megatron/comm/overlap/async_group.h"
#include "megatron/layers/layer_context.h"
#include "megatron/layers/moe/expert_groups.h"
#include "megatron/layers/moe/moe_options.h"
#include "megatron/ops/moe/grouped_linear.h"

namespace megatron {

class TokenDispatcher {
 public:
  // The ranks that rows go to; tensors are allocated in ctx.saved.
  struct Plan {
    Tensor place_NKC;
    std::vector<int64_t> sent, received;  // numbers of rows, by rank of the group
    std::vector<ops::RowGroup> groups;    // the rows received, grouped by this rank's experts

    int64_t num_sent() const;
    int64_t num_received() const;
  };

  // Where the groups dispatch by host, rows go to the ranks and experts of this host alone: the
  // rows to route, and the numbers of experts, are those that a HostDispatcher gives.
  TokenDispatcher(const MoeOptions& options, const ExpertGroups& groups);

  // Returns whether this rank is alone, so that rows are received as they were sent.
  bool alone() const { return group_.size() == 1; }
  // Returns whether each expert is sent as many rows as it may take, zeros where no choice fills
  // them, so that no rank has to be told how many there are.
  bool pads() const { return options_.pad_to_capacity; }

  // `expert` has -1 for dropped choices. Ranks of a group work in step.
  void MakePlan(const LayerContext& ctx, const Tensor& expert_NK, Plan* plan) const;
  // Starts to write *rows, the rows that all ranks send to this rank's experts, allocated in
  // `arena`; where alone(), they are the rows that were sent. `plan` lives until the call has been
  // waited for.
  [[nodiscard]] AsyncCall ToExperts(const LayerContext& ctx, const Plan& plan,
                                    const Tensor& sent_SH, Arena* arena, Tensor* rows_RH) const;
  // Starts to write *returned, the rows of the way back, of results or gradients, as ToExperts
  // does.
  [[nodiscard]] AsyncCall FromExperts(const LayerContext& ctx, const Plan& plan,
                                      const Tensor& rows_RH, Arena* arena,
                                      Tensor* returned_SH) const;

 private:
  // The ranks with different experts.
  int64_t expert_ranks() const { return group_.size() / copies_; }
  int64_t local_experts() const { return num_experts_ / expert_ranks(); }
  // The most rows that one rank sends.
  int64_t RowsOfExpert(const LayerContext& ctx) const;
  int64_t MostReceived(const LayerContext& ctx) const;
  void PlanPadded(int64_t of_expert, Plan* plan) const;
  void PlanLargest(const LayerContext& ctx, int64_t rows, Plan* plan) const;

  MoeOptions options_;
  ProcessGroup group_;   // the ranks that rows go to
  int64_t hosts_;        // the groups that share the tokens
  int64_t num_experts_;  // those of `group_`
  int64_t copies_;       // ranks with parts of the same experts
};

}  // namespace megatron

#endif  // MEGATRON_LAYERS_MOE_TOKEN_DISPATCHER_H_
