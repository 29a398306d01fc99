// Plays what all stages of a pipeline do in a step, messages included, with the times that each
// part takes: measured ones, or others that ask what would be if.
//
// A stage takes the steps of its plan one after the other, without a pause. An exchange waits until
// every stage that it has messages for has come to its own exchange of these messages, and then
// takes its time. CheckSchedule() is the same for a schedule in which messages take no time and
// nobody waits to give one away.
//
// Where exchanges run beside the actions (comm/overlap/async_group.h), they follow each other, none
// begins before the actions in front of it have ended, and an action waits for those that it needs.
#ifndef MEGATRON_PIPELINE_REPLAY_PLANS_H_
#define MEGATRON_PIPELINE_REPLAY_PLANS_H_

#include <cstddef>
#include <vector>

#include "megatron/pipeline/stage_plan.h"

namespace megatron {

struct PlannedStep {
  int stage = 0;
  size_t step = 0;  // its number in the stage's plan
};

// For each step of each stage, the exchanges of other stages that it has messages of. Empty for an
// action.
using ExchangePartners = std::vector<std::vector<std::vector<PlannedStep>>>;

// `plans` are those of all stages of one schedule, in order.
ExchangePartners FindPartners(const std::vector<StagePlan>& plans);

// For each step of each stage, the exchanges of its own stage for which RunSchedule waits before
// it, where they run beside the actions. Empty for an exchange.
using AwaitedExchanges = std::vector<std::vector<std::vector<size_t>>>;

AwaitedExchanges FindAwaited(const std::vector<StagePlan>& plans);

// The times of one stage, in any unit.
struct StageTimes {
  double start = 0;           // the moment at which it begins
  std::vector<double> steps;  // the time that each step of its plan takes, once all have come
};

// Returns the moment at which each stage has done all of its steps. `awaited` is null where each
// exchange ends before the next step begins.
std::vector<double> ReplayPlans(const ExchangePartners& partners, const AwaitedExchanges* awaited,
                                const std::vector<StageTimes>& times);

// When one step of a stage ran.
struct StepSpan {
  double begin = 0;  // for an exchange, the moment at which all of its stages have come
  double end = 0;
};

// The same, with all steps of each stage.
std::vector<std::vector<StepSpan>> ReplaySteps(const ExchangePartners& partners,
                                               const AwaitedExchanges* awaited,
                                               const std::vector<StageTimes>& times);

}  // namespace megatron

#endif  // MEGATRON_PIPELINE_REPLAY_PLANS_H_
