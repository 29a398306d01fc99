// What a rank sums less of where the gradients of matrices are summed as matrices of low rank
// (docs/gradient_compression.md, powersgd).
#ifndef MEGATRON_PLAN_LOW_RANK_COSTS_H_
#define MEGATRON_PLAN_LOW_RANK_COSTS_H_

#include "megatron/plan/plan_facts.pb.h"
#include "megatron/plan/step_prediction.h"

namespace megatron {

// Elements that are not summed: those of a layer's dense weights and of its experts, on one rank.
struct LowRankSavings {
  double dense = 0;
  double experts = 0;
};

// Returns none but with PlanCompression::kLowRank.
LowRankSavings LowRankSavingsOfLayer(const PlanModel& model, const PlanLayout& layout,
                                     bool is_mixture);
double LowRankSavingsOfWordTable(const PlanModel& model, const PlanLayout& layout);

}  // namespace megatron

#endif  // MEGATRON_PLAN_LOW_RANK_COSTS_H_
