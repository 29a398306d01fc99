// RunSchedule: carries out a StagePlan.
//
// Every rank of `pipeline` calls it with the plan of its own stage (its rank) of one schedule. With
// one stage and one chunk there are no messages and no edges, only calls of the Stage.
//
//   const StagePlan plan = PlanStage(InterleavedSchedule({stages, microbatches}), stage);
//   ... plan.slots[chunk]: how many micro-batches the Stage must hold at once ...
//   MEGATRON_RETURN_IF_ERROR(RunSchedule(plan, &stage, groups.pipeline, &edges, stream));
#ifndef MEGATRON_PIPELINE_EXECUTOR_H_
#define MEGATRON_PIPELINE_EXECUTOR_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "megatron/comm/process_group.h"
#include "megatron/pipeline/check_schedule.h"
#include "megatron/pipeline/stage.h"
#include "megatron/pipeline/stage_plan.h"
#include "megatron/tensor/memory.h"
#include "megatron/tensor/stream.h"

namespace megatron {

// Takes the memory of edges from `arena` (null if there are none) and gives it back at the end; on
// the meta device this measures what a real run needs. Stops early with the group's status if an
// exchange fails. Where the group has a lane (comm/overlap/async_group.h), exchanges run beside the
// stage: an action waits for what it reads, and for the place of its result.
absl::Status RunSchedule(const StagePlan& plan, Stage* stage, const ProcessGroup& pipeline,
                         Arena* arena, const Stream& stream);

// The same, and when each action began and ended: in seconds from a moment at which all ranks had
// come. On the CPU, where an action is over when its call returns.
absl::StatusOr<Timeline> RunScheduleAndMeasure(const StagePlan& plan, Stage* stage,
                                               const ProcessGroup& pipeline, Arena* arena,
                                               const Stream& stream);

// Gives each rank of `pipeline` what all of them have measured of one schedule.
absl::StatusOr<std::vector<Timeline>> GatherTimelines(const Schedule& schedule,
                                                      const Timeline& mine,
                                                      const ProcessGroup& pipeline,
                                                      const Stream& stream);

}  // namespace megatron

#endif  // MEGATRON_PIPELINE_EXECUTOR_H_
