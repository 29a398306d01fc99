// What the rows of a mixture's tokens cost on their way to their experts and back
// (docs/experts.md). Routers balance.
#ifndef MEGATRON_PLAN_EXPERT_DISPATCH_H_
#define MEGATRON_PLAN_EXPERT_DISPATCH_H_

#include "megatron/plan/collective_time.h"
#include "megatron/plan/plan_facts.pb.h"
#include "megatron/plan/step_prediction.h"

namespace megatron {

// Returns on how many of `hosts` hosts, with equally many of the experts each, a token has experts
// that chooses so many different ones by chance: the mean.
double ExpectedHosts(double hosts, double experts, double choices);

// The rows that a rank gives in one way of a micro-batch, its own included, and the ranks among
// which they go.
struct ExpertRows {
  PlanGroup to_experts;    // the ranks that have the experts, or those of a host
  double of_experts = 0;   // for experts that aren't cut
  PlanGroup across_hosts;  // with deduplicated dispatch the ranks in one place of every host
  double of_hosts = 0;
};

ExpertRows ExpertRowsOf(const PlanModel& model, const PlanLayout& layout);

// Bytes that go with a row to a host, and back in the backward pass: the number and the probability
// of each of the token's choices, and the gradient of the latter.
inline double BytesOfChoices(const PlanModel& model) { return 8 * model.experts_per_token(); }
inline double BytesOfProbabilities(const PlanModel& model) { return 4 * model.experts_per_token(); }

// Returns the seconds of all calls of one layer in both passes of a micro-batch.
double ExpertExchangeSeconds(const Hardware& gpu, const Implementation& program,
                             const PlanModel& model, const PlanLayout& layout);

}  // namespace megatron

#endif  // MEGATRON_PLAN_EXPERT_DISPATCH_H_
