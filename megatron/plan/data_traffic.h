// What the ranks that have the same weights send each other in a step: gradients and weights, in
// the forms that docs/data_parallel.md, docs/communication.md and docs/diloco.md describe.
#ifndef MEGATRON_PLAN_DATA_TRAFFIC_H_
#define MEGATRON_PLAN_DATA_TRAFFIC_H_

#include <vector>

#include "megatron/plan/collective_time.h"
#include "megatron/plan/plan_facts.pb.h"
#include "megatron/plan/step_prediction.h"
#include "megatron/plan/traffic_row.h"

namespace megatron {

// Parameters of a rank, and the ranks that have the same ones.
struct SharedParameters {
  PlanGroup ranks;
  double count = 0;
  bool are_of_experts = false;
  // Where they are shared out, elements that a micro-batch gathers beside all of them twice.
  double gathered_besides = 0;
  // The elements that are summed in their place with PlanCompression::kLowRank.
  double low_rank_count = 0;
  // The calls in which programs that send by layer send all of them.
  double layers = 1;
};

// Returns the ranks with the layout's dense weights, and those with the same experts.
PlanGroup DenseCopies(const PlanLayout& layout);
PlanGroup ExpertCopies(const PlanLayout& layout);

// Returns the bytes of an element of the gradients that ranks add up.
double GradientBytes(const Implementation& program, const PlanLayout& layout);

// Returns rows with calls and bytes above 0 alone.
std::vector<TrafficRow> DataTraffic(const Implementation& program, const PlanLayout& layout,
                                    const SharedParameters& parameters);

}  // namespace megatron

#endif  // MEGATRON_PLAN_DATA_TRAFFIC_H_
