// A profiled step of a run, as `plan --explain --measured` shows it beside the simulated one.
#ifndef MEGATRON_TOOLS_PLAN_MEASURED_TIMELINE_H_
#define MEGATRON_TOOLS_PLAN_MEASURED_TIMELINE_H_

#include <cstddef>
#include <vector>

#include "megatron/plan/simulate_step.h"
#include "megatron/train/profile/trace_json.h"
#include "tools/pictures/lane_chart.h"
#include "tools/report/run_profile.h"

namespace megatron {

// Returns the seconds from the beginning of the measured step to its first pass; 0 without passes.
double FirstPass(const report::RunProfile& measured);

// Returns the simulated stages, and behind them the last profiled step of each measured rank, as
// processes of one trace. Each measured step begins at 0, and the simulated one so that the first
// pass of both begins at the same time.
std::vector<TracedRank> TraceBeside(const SimulatedStep& simulated,
                                    const report::RunProfile& measured);

// Returns a picture of both, one below the other on one scale of milliseconds, of no more than
// `most_lanes` stages and as many ranks; of the simulated step alone where no rank was measured.
LaneChart ChartBeside(const SimulatedStep& simulated, const report::RunProfile& measured,
                      size_t most_lanes);

}  // namespace megatron

#endif  // MEGATRON_TOOLS_PLAN_MEASURED_TIMELINE_H_
