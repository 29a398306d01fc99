// Trains small models, and fits constants to what their steps take beside the kernels and calls
// that were calibrated one by one. The models are none of those that planner_check runs.
#ifndef TOOLS_CALIBRATION_REFERENCE_RUNS_H_
#define TOOLS_CALIBRATION_REFERENCE_RUNS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "megatron/plan/measured_kernels.h"
#include "megatron/plan/plan_facts.pb.h"
#include "tools/calibration/check_layouts.h"
#include "tools/calibration/check_report.h"
#include "tools/calibration/planned_layout.h"

namespace megatron {

const std::vector<CheckedModel>& ReferenceModels();
const std::vector<CheckedLayout>& ReferenceLayouts();

// Returns the configuration of one of these models.
const std::string& ReferenceConfig(const std::string& model);

// What a layout has beyond others, and what a step of it was measured to take.
struct ReferenceRow {
  enum Kind {
    kPlain,          // ranks of one core
    kGated,          // these, of a model whose MLPs have gates
    kThreads,        // ranks of several cores
    kTurns,          // more ranks than cores
    kStages,         // these, as stages of a pipeline
    kExperts,        // that all ranks have
    kSharedExperts,  // that ranks share out
  };
  Kind kind = kPlain;
  double measured = 0;
  double rest = 0;  // see CheckedRun
};

ReferenceRow::Kind KindOf(const PlannedLayout& planned);

// Returns the program with step_seconds as the mean of the rows' rest, and with constants that have
// the least squares of the logarithms' errors: measured_efficiency of plain rows,
// gated_memory_efficiency of gated ones, and threads_efficiency. Where the rows before are missing,
// measured_efficiency is that of the next. turn_seconds is no less than that of `program`.
// turn_cost, routing_seconds and expert_wait, which are no less than 0, have the least squares of
// relative errors of the rows of their kind.
Implementation FitToReferences(Implementation program, const std::vector<ReferenceRow>& rows,
                               const PredictRow& predict);

// Returns kInvalidArgument if the training program isn't beside this one.
absl::Status CheckTrainingProgram();

struct FittedProgram {
  Implementation program;
  std::vector<CheckedRow> rows;  // the reference runs beside its predictions
};

// Trains the reference models in turn, until each layout has `rounds` undisturbed runs or has run
// kTriesOfARun times as often, and fits the program to the medians at the speed that cores had when
// they were calibrated.
absl::StatusOr<FittedProgram> FitToReferenceRuns(const Hardware& hardware,
                                                 const Implementation& program,
                                                 const MeasuredKernels& kernels, int rounds);

}  // namespace megatron

#endif  // TOOLS_CALIBRATION_REFERENCE_RUNS_H_
