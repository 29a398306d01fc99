// The seconds of a step in which a rank's weights are updated and, where gradients and weights are
// shared out or lie in host memory, added up and fetched.
#ifndef MEGATRON_PLAN_UPDATE_SECONDS_H_
#define MEGATRON_PLAN_UPDATE_SECONDS_H_

#include "megatron/plan/layer_costs.h"
#include "megatron/plan/matrix_rule_costs.h"
#include "megatron/plan/plan_facts.pb.h"
#include "megatron/plan/step_prediction.h"

namespace megatron {

// The parameters of a rank: those of its layers without experts, its word tables, and its experts.
struct RankParameters {
  double layers = 0;
  double tables = 0;
  double experts = 0;
};

// Returns the seconds of the gradients' norm, of the update of the parameters that the rank
// updates, padded as the rule says, and of the outer step of islands.
double UpdateSeconds(const Hardware& gpu, const Implementation& program, const PlanLayout& layout,
                     const RankRates& rates, const RankParameters& parameters,
                     const MatrixRuleLayer& rule);

// Returns the seconds in which gradients that are shared out are added up.
double SumSeconds(const PlanLayout& layout, const RankRates& rates,
                  const RankParameters& parameters);

// Returns the seconds for which a step of `layers` layers waits for weights that come from host
// memory and for gradients that go there. `table` are the parameters of one word table, and
// `window` the seconds of a micro-batch's passes.
double FetchSeconds(const Hardware& gpu, const Implementation& program, const PlanLayout& layout,
                    const RankRates& rates, const LayerCosts& layer, double layers, double table,
                    double window);

}  // namespace megatron

#endif  // MEGATRON_PLAN_UPDATE_SECONDS_H_
