// Runs a schedule with threads as ranks that sleep in place of computing.
#ifndef MEGATRON_PIPELINE_SLEEP_THROUGH_H_
#define MEGATRON_PIPELINE_SLEEP_THROUGH_H_

#include "absl/status/statusor.h"
#include "megatron/pipeline/check_schedule.h"

namespace megatron {

// Returns what was measured; `costs` are in seconds. The schedule must pass CheckSchedule.
absl::StatusOr<ScheduleReport> SleepThrough(const Schedule& schedule, const PartCosts& costs);

}  // namespace megatron

#endif  // MEGATRON_PIPELINE_SLEEP_THROUGH_H_
