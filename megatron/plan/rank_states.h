// What a rank holds of its parameters: weights, gradients and the optimizer's states, on its device
// and in host memory.
#ifndef MEGATRON_PLAN_RANK_STATES_H_
#define MEGATRON_PLAN_RANK_STATES_H_

#include <algorithm>

#include "megatron/plan/plan_facts.pb.h"
#include "megatron/plan/step_prediction.h"

namespace megatron {

// Return the number of ranks with the same dense weights, and with the same experts.
inline double NumDenseCopies(const PlanLayout& layout) { return double(layout.dp * layout.cp); }
inline double NumExpertCopies(const PlanLayout& layout) {
  return std::max(1.0, double(layout.dp * layout.cp * layout.tp) / double(layout.ep * layout.etp));
}

// Return how many of `copies` ranks with the same weights share out those, with their gradients,
// and the optimizer's states, where the layout shares them out.
inline double Shards(const PlanLayout& layout, double copies) {
  return copies / double(layout.instances);
}
inline double NumStateShards(const PlanLayout& layout, double copies) {
  return layout.shards_states_over_instances ? copies : Shards(layout, copies);
}

// Return the bytes that a rank holds of `parameters` parameters, which `copies` ranks have: on its
// device, in host memory, and in files.
double StateBytes(const Implementation& program, const PlanLayout& layout, double parameters,
                  double copies);
double HostStateBytes(const Implementation& program, const PlanLayout& layout, double parameters,
                      double copies);
double FileStateBytes(const Implementation& program, const PlanLayout& layout, double parameters,
                      double copies);

}  // namespace megatron

#endif  // MEGATRON_PLAN_RANK_STATES_H_
