// What rules that need whole matrices, Muon and LAMB, cost a rank (docs/optimizers.md).
#ifndef MEGATRON_PLAN_MATRIX_RULE_COSTS_H_
#define MEGATRON_PLAN_MATRIX_RULE_COSTS_H_

#include <vector>

#include "megatron/plan/plan_facts.pb.h"
#include "megatron/plan/step_prediction.h"
#include "megatron/plan/traffic_row.h"

namespace megatron {

// The update of one layer by the rank that has most of it.
struct MatrixRuleLayer {
  double flops = 0;  // those of Newton-Schulz iterations
  // What tensor-parallel ranks send each other, with calls of one layer.
  std::vector<TrafficRow> traffic;
  // The elements of dense weights, and of experts, with the padding of whole matrices, as multiples
  // of those without.
  double dense_padding = 1;
  double expert_padding = 1;
  // The same of a word table, which one rank keeps whole with LAMB.
  double table_padding = 1;
};

// Returns nothing to do if the layout's optimizer is neither. Expects buckets of one layer.
MatrixRuleLayer MatrixRuleCosts(const Implementation& program, const PlanModel& model,
                                const PlanLayout& layout, bool is_mixture);

// Returns the bytes of memory that AdamW reads and writes to update an element, or LAMB.
inline double UpdatedBytes(const PlanLayout& layout, bool is_of_table) {
  constexpr double kAdamW = 26;
  if (!layout.is_lamb) return kAdamW;
  // The step is zeros first; decay is copied, scaled and added; both norms read; the step is scaled
  // by its ratio and by the rate, and added; weights are made from masters.
  constexpr double kStep = 4 + (8 + 8 + 12) + 8 + 8 + 8 + 12 + 4;
  // The weights and the step of a matrix are copied, and the step is copied back.
  constexpr double kCopies = 3 * 8;
  return kAdamW + kStep + (is_of_table ? 0 : kCopies);
}

// Returns the seconds that the update of one layer takes beside its passes over elements.
double MatrixRuleSeconds(const Hardware& gpu, const Implementation& program, const PlanModel& model,
                         const PlanLayout& layout, bool is_mixture);

}  // namespace megatron

#endif  // MEGATRON_PLAN_MATRIX_RULE_COSTS_H_
