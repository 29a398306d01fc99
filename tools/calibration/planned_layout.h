// A layout of a small model as the planner sees it.
#ifndef TOOLS_CALIBRATION_PLANNED_LAYOUT_H_
#define TOOLS_CALIBRATION_PLANNED_LAYOUT_H_

#include <string>

#include "absl/status/statusor.h"
#include "megatron/plan/measured_kernels.h"
#include "megatron/plan/plan_facts.pb.h"
#include "megatron/train/planning/planned_run.h"
#include "tools/calibration/check_layouts.h"

namespace megatron {

struct PlannedLayout {
  PlannedRun run;
  Hardware hardware;

  // Returns the predicted seconds of a step, with the constants of `program` that are fitted to
  // runs: measured_efficiency, gated_memory_efficiency, step_seconds, threads_efficiency,
  // turn_cost, turn_seconds, routing_seconds and expert_wait.
  absl::StatusOr<double> Seconds(const Implementation& program,
                                 const MeasuredKernels& kernels) const;
};

// Expects a configuration in text format.
absl::StatusOr<PlannedLayout> PlanCheckedLayout(const std::string& config,
                                                const CheckedLayout& layout,
                                                const Implementation& program,
                                                const Hardware& hardware);

}  // namespace megatron

#endif  // TOOLS_CALIBRATION_PLANNED_LAYOUT_H_
