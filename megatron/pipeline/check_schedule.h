// Plays a schedule on all stages at once: proves that it can be run, and tells how long it takes.
//
// A schedule is right when every stage forwards each micro-batch once through each of its chunks
// and then takes it backward once, whole or in two parts, input before weight (or when there are no
// backwards at all, as in evaluation), and when the stages never wait for one another in a circle.
// Messages take no time here.
#ifndef MEGATRON_PIPELINE_CHECK_SCHEDULE_H_
#define MEGATRON_PIPELINE_CHECK_SCHEDULE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "megatron/pipeline/schedule.h"

namespace megatron {

struct TimedAction {
  Action action;
  double start = 0;
  double end = 0;
};

using Timeline = std::vector<TimedAction>;  // the actions of one stage, in order

struct ScheduleReport {
  std::vector<Timeline> stages;
  double time = 0;  // time from the first start to the last end
  // The share that the schedule adds to the time for which the busiest stage computes: time / its
  // work - 1.
  double bubble = 0;
  // The most work items (a micro-batch on a chunk) of each stage that were forwarded and not yet
  // entirely backwarded at once, which activation memory must hold.
  std::vector<int> in_flight;
};

// Returns the time of an action of this kind.
double CostOf(ActionKind kind, const ActionCosts& costs);

// Returns kFailedPrecondition with the stages and the action at fault, if the schedule is wrong.
absl::StatusOr<ScheduleReport> CheckSchedule(const Schedule& schedule, const PartCosts& costs = {});

// The same of what was measured.
ScheduleReport SummarizeTimelines(std::vector<Timeline> stages);

}  // namespace megatron

#endif  // MEGATRON_PIPELINE_CHECK_SCHEDULE_H_
