// A configuration as the planner (megatron/plan) sees it.
//
//   MEGATRON_ASSIGN_OR_RETURN(const PlannedRun run, ToPlannedRun(config, vocab, own_program));
//   PredictStep(gpu, run.program, kernels, run.model, run.layout);
#ifndef MEGATRON_TRAIN_PLANNING_PLANNED_RUN_H_
#define MEGATRON_TRAIN_PLANNING_PLANNED_RUN_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "megatron/plan/plan_facts.pb.h"
#include "megatron/plan/step_prediction.h"
#include "megatron/train/config/config.pb.h"

namespace megatron {

// The order of ranks besides the default that predictions know: Megatron's use_tp_pp_dp_mapping.
inline constexpr char kDataOutermost[] = "tp-cp-ep-pp-dp";

struct PlannedRun {
  PlanModel model;
  PlanLayout layout;
  // What this program does with the configuration's options; efficiencies are those of `own`.
  Implementation program;
};

// Expects a valid configuration with its computed fields set. `padded_vocab_size` is the
// vocabulary's size as the model holds it, and `own` is the entry of this program among the facts.
// Samples of a BERT and of a T5 are taken to be as long as they may be.
absl::StatusOr<PlannedRun> ToPlannedRun(const config::PretrainConfig& config,
                                        int64_t padded_vocab_size, const Implementation& own);

// Sets what the configuration says about communication that no layout of a search has: the bytes of
// an element of the gradients that ranks send each other, the way of collectives, and what
// tensor-parallel ranks hide.
void SetHeldCommunication(const config::PretrainConfig& config, PlannedRun* run);

// Returns whether all that layers keep between their passes lies in a GPU's host memory. Expects a
// valid configuration with its computed fields set.
bool OffloadsAllLayers(const config::PretrainConfig& config);

// Returns whether the hardware is a processor, whose ranks are no GPUs.
bool IsProcessor(const Hardware& hardware);

// Returns the hardware as `ranks` ranks of this configuration meet it. Ranks that are processes and
// share a processor are joined by its "network" (plan_facts.proto) alone. With system.num_threads
// they have no more cores than threads, of which each rank has one at least.
Hardware HardwareOfRun(const config::PretrainConfig& config, int64_t ranks, Hardware hardware);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_PLANNING_PLANNED_RUN_H_
