// What Muon's update of the matrices of a layer costs a rank (docs/optimizers.md).
#ifndef MEGATRON_PLAN_MUON_COSTS_H_
#define MEGATRON_PLAN_MUON_COSTS_H_

#include <vector>

#include "megatron/plan/plan_facts.pb.h"
#include "megatron/plan/step_prediction.h"
#include "megatron/plan/traffic_row.h"

namespace megatron {

// The update of one layer by the rank that has most of it.
struct MuonLayer {
  double flops = 0;  // those of the Newton-Schulz iterations
  // What tensor-parallel ranks send each other, with calls of one layer.
  std::vector<TrafficRow> traffic;
  // The elements of dense weights, and of experts, with the padding of whole matrices, as multiples
  // of those without.
  double dense_padding = 1;
  double expert_padding = 1;
};

// Returns nothing to do if the layout's optimizer is not Muon. Expects buckets of one layer.
MuonLayer MuonLayerCosts(const Implementation& program, const PlanModel& model,
                         const PlanLayout& layout, bool is_mixture);

// Returns the seconds of the update of one layer.
double MuonLayerSeconds(const Hardware& gpu, const Implementation& program, const PlanModel& model,
                        const PlanLayout& layout, bool is_mixture);

}  // namespace megatron

#endif  // MEGATRON_PLAN_MUON_COSTS_H_
