// Plays the step of a pipeline with the seconds of each part of the model, by the plans that
// trainers execute: the same orders of passes, and the same exchanges of messages.
//
//   const std::vector<StagePlan> plans = PlanStages(MakeSchedule(options), planned_costs);
//   const SimulatedStep step = SimulateStep(plans, seconds, {message_seconds});
//
// Parts may differ: an embedding, a head, more layers, dense ones among mixtures.
#ifndef MEGATRON_PLAN_SIMULATE_STEP_H_
#define MEGATRON_PLAN_SIMULATE_STEP_H_

#include <vector>

#include "megatron/pipeline/check_schedule.h"
#include "megatron/pipeline/schedule.h"
#include "megatron/pipeline/stage_plan.h"

namespace megatron {

struct MessageCosts {
  double seconds = 0;          // the time of one tensor between two stages
  bool beside_passes = false;  // messages go beside passes; else stages pause for them
  // The number of tensors that cross the edge behind each part but the last; empty: one.
  std::vector<double> tensors = {};

  // Returns the number of tensors of the messages.
  double TensorsOf(const StagePlan& plan, const std::vector<Message>& messages,
                   bool are_sent) const;
};

struct SimulatedExchange {
  const char* name = "";  // one of the names of span_names.h
  double begin = 0;       // all of its stages have come
  double end = 0;
};

struct SimulatedStage {
  double work = 0;      // seconds of its passes
  double messages = 0;  // seconds of its exchanges, without waiting for other stages
  Timeline passes;
  std::vector<SimulatedExchange> exchanges;
};

struct SimulatedStep {
  std::vector<SimulatedStage> stages;
  double seconds = 0;
  int busiest = 0;  // the stage with the most work
  // The busiest stage's wait for others if messages took no time, and what messages add to it.
  double bubble = 0;
  double message_seconds = 0;
};

// `plans` are those of all stages of one schedule, and `seconds` has one entry for each position,
// or one for all.
SimulatedStep SimulateStep(const std::vector<StagePlan>& plans, const PartCosts& seconds,
                           const MessageCosts& messages);

}  // namespace megatron

#endif  // MEGATRON_PLAN_SIMULATE_STEP_H_
