// recompute.cpu_offloading_auto: the number of layers whose activations leave for host memory.
//
// What a layer keeps comes from a plan on the meta device with all layers offloaded, what a layer's
// passes take from the predictions of docs/planning.md, and the link's speed from the same figures
// of the hardware. The choice follows from these; bits do not depend on it.
#ifndef MEGATRON_TRAIN_PLANNING_CHOOSE_OFFLOAD_H_
#define MEGATRON_TRAIN_PLANNING_CHOOSE_OFFLOAD_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "megatron/train/config/config.pb.h"
#include "megatron/train/planning/planning_facts.h"
#include "megatron/train/trainer/run_options.h"
#include "megatron/train/trainer/run_plan.h"

namespace megatron {

struct OffloadChoice {
  int64_t num_layers = 0;  // the first ones of each part of the model
  std::string text;        // what was chosen, and why
};

// Returns the most layers whose copies cost no stage any time. `plan` is that of a run on GPUs with
// all layers offloaded. Errors are those of ToPlannedRun() and PredictParts(), and kInvalidArgument
// for hardware whose link to the host is unknown.
absl::StatusOr<OffloadChoice> ChooseOffload(const config::PretrainConfig& config,
                                            const RunOptions& options, const RunPlan& plan,
                                            const PlanningFacts& facts);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_PLANNING_CHOOSE_OFFLOAD_H_
