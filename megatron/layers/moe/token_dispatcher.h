// Brings the rows of tokens to the ranks that hold their experts, and back: one all-to-all each
// way, or two.
//
// Rows are sent in the order of (rank, expert, token). Where an expert is cut over several ranks,
// each of them gets every row and gives back a summand of the result. What arrives is in the order
// of (sender, expert, token): groups of rows by expert, which the experts' products take as they
// are.
//
// With MoeOptions::dispatch_in_parts the rows of the first half of each rank's experts travel
// before those of the second half, by an all-to-all of their own. An expert's rows have the same
// order then.
//
// The number of rows that arrive is not known before the step. Memory is planned for the most there
// can be: all tokens of the ranks that share the experts choose this rank's (or as many as its
// capacity takes).
//
// Legend: N rows that this rank routes, S rows it sends, R rows it receives, H hidden, K experts a
// token, C ranks that hold parts of one expert.
#ifndef MEGATRON_LAYERS_MOE_TOKEN_DISPATCHER_H_
#define MEGATRON_LAYERS_MOE_TOKEN_DISPATCHER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "megatron/comm/overlap/async_group.h"
#include "megatron/layers/layer_context.h"
#include "megatron/layers/moe/expert_groups.h"
#include "megatron/layers/moe/expert_part.h"
#include "megatron/layers/moe/moe_options.h"
#include "megatron/ops/moe/grouped_linear.h"

namespace megatron {

class TokenDispatcher {
 public:
  // What all ranks send to a part of each rank's experts.
  struct PartMessages {
    int64_t first_sent = 0;               // the first of this rank's rows, among all that it sends
    std::vector<int64_t> sent, received;  // numbers of rows, by rank of the group
  };

  // The ranks that rows go to; tensors are allocated in ctx.saved.
  struct Plan {
    Tensor place_NKC;
    std::vector<PartMessages> messages;
    std::vector<ExpertPart> parts;      // the experts of this rank that get them
    std::vector<ops::RowGroup> groups;  // the rows received, grouped by this rank's experts

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
  // `arena`; where alone(), they are the rows that were sent. Returns the call of each part. `plan`
  // lives until they have been waited for.
  [[nodiscard]] std::vector<AsyncCall> ToExperts(const LayerContext& ctx, const Plan& plan,
                                                 const Tensor& sent_SH, Arena* arena,
                                                 Tensor* rows_RH) const;
  // Starts to write the part's rows of `returned`, the rows of the way back, of results or
  // gradients: in the places of what was sent, whose memory it may be. Where alone() it does
  // nothing. `plan` lives as above.
  [[nodiscard]] AsyncCall FromExperts(const LayerContext& ctx, const Plan& plan, size_t part,
                                      const Tensor& rows_RH, const Tensor& returned_SH) const;

 private:
  // The ranks with different experts.
  int64_t expert_ranks() const { return group_.size() / copies_; }
  int64_t local_experts() const { return num_experts_ / expert_ranks(); }
  // The most rows that one rank sends.
  int64_t RowsOfExpert(const LayerContext& ctx) const;
  int64_t MostReceived(const LayerContext& ctx) const;
  // Sets all of the plan but places, from the numbers of rows by (rank, expert of the one that
  // receives them).
  void SetRows(absl::Span<const int64_t> sent, absl::Span<const int64_t> received,
               Plan* plan) const;
  void PlanLargest(const LayerContext& ctx, int64_t rows, Plan* plan) const;

  MoeOptions options_;
  ProcessGroup group_;   // the ranks that rows go to
  int64_t hosts_;        // the groups that share the tokens
  int64_t num_experts_;  // those of `group_`
  int64_t copies_;       // ranks with parts of the same experts
  int64_t parts_;        // those of a rank's experts
};

}  // namespace megatron

#endif  // MEGATRON_LAYERS_MOE_TOKEN_DISPATCHER_H_
