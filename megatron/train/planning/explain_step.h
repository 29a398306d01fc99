// What a step of a configuration costs, and why: its parts, its traffic and its timeline.
#ifndef MEGATRON_TRAIN_PLANNING_EXPLAIN_STEP_H_
#define MEGATRON_TRAIN_PLANNING_EXPLAIN_STEP_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "megatron/pipeline/schedule.h"
#include "megatron/plan/measured_kernels.h"
#include "megatron/plan/plan_facts.pb.h"
#include "megatron/plan/simulate_step.h"
#include "megatron/plan/step_prediction.h"
#include "megatron/plan/step_traffic.h"
#include "megatron/train/config/config.pb.h"
#include "megatron/train/planning/planned_run.h"
#include "megatron/train/profile/trace_json.h"

namespace megatron {

// What a rank sends along an axis in a step.
struct TrafficOfAxis {
  TrafficAxis axis = TrafficAxis::kTensor;
  std::vector<TrafficRow> rows;
  double bytes = 0;
  double network_bytes = 0;  // those that leave the domain of links
  double seconds = 0;        // the calls' time, one after the other
  double exposed = 0;        // the seconds for which computing waits; the rest is hidden behind it
  bool crosses_network = false;  // its groups leave the domain of links
};

struct ExplainedStep {
  PlannedRun run;
  // The stage that works most, which never waits longer than others.
  int stage = 0;
  StepSeconds seconds;
  // The schedule that was played. Where more ranks than cores share a processor, `seconds` know
  // that, and this is the step of ranks that each have a core.
  SimulatedStep simulated;
  bool shares_cores = false;
  std::vector<TrafficOfAxis> traffic;  // the bytes of a rank of that stage
  double model_flops = 0;              // one GPU's in a step
  double tokens = 0;                   // all ranks' in a step
  double parameters = 0;               // the whole model's
};

// Returns what the passes of a micro-batch through a part of the model are predicted to take, as a
// mean over parts. The arguments and errors are those of ExplainStep().
absl::StatusOr<ActionCosts> PredictPassCosts(const config::PretrainConfig& config,
                                             int64_t padded_vocab_size, const Hardware& gpu,
                                             const Implementation& own,
                                             const MeasuredKernels& kernels);

// Returns the order of a step's passes.
Schedule ScheduleOfStep(const config::PretrainConfig& config, const PlanLayout& layout);

// Expects a valid configuration with its computed fields set; `padded_vocab_size` and `own` are
// those of ToPlannedRun(). Errors are those of ToPlannedRun() and PredictParts().
absl::StatusOr<ExplainedStep> ExplainStep(const config::PretrainConfig& config,
                                          int64_t padded_vocab_size, const Hardware& gpu,
                                          const Implementation& own,
                                          const MeasuredKernels& kernels);

// Returns the simulated passes and exchanges as the trace of a rank of each stage, with the names
// that a profile of the trainer has.
std::vector<TracedRank> ToTrace(const SimulatedStep& step);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_PLANNING_EXPLAIN_STEP_H_
