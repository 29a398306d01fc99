#include "megatron/pipeline/sleep_through.h"

#include <utility>
#include <vector>

#include "megatron/base/status_macros.h"
#include "megatron/base/thread_pool.h"
#include "megatron/comm/thread/run_ranks.h"
#include "megatron/pipeline/executor.h"
#include "megatron/pipeline/sleeping_stage.h"
#include "megatron/pipeline/stage_plan.h"

namespace megatron {

absl::StatusOr<ScheduleReport> SleepThrough(const Schedule& schedule, const PartCosts& costs) {
  std::vector<Timeline> timelines;
  const auto run = [&](int rank, const ProcessGroup& pipeline) -> absl::Status {
    ThreadPool pool(1);
    const Stream stream = Stream::Cpu(&pool);
    MemoryLedger ledger;
    const StagePlan plan = PlanStage(schedule, rank, costs);
    SleepingStage stage(costs, plan.positions, schedule.positions());
    // Edges are a number each.
    const int64_t edges = int64_t{4} * schedule.positions() * schedule.microbatches + 1;
    Arena arena(stream.device(), edges * Buffer::kAlignment, "edges", &ledger);
    MEGATRON_ASSIGN_OR_RETURN(const Timeline mine,
                              RunScheduleAndMeasure(plan, &stage, pipeline, &arena, stream));
    MEGATRON_ASSIGN_OR_RETURN(std::vector<Timeline> all,
                              GatherTimelines(schedule, mine, pipeline, stream));
    if (rank == 0) timelines = std::move(all);
    return absl::OkStatus();
  };
  MEGATRON_RETURN_IF_ERROR(RunRanks(schedule.stages, run));
  return SummarizeTimelines(std::move(timelines));
}

}  // namespace megatron
