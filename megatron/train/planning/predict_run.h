// What a run expects of its own steps.
#ifndef MEGATRON_TRAIN_PLANNING_PREDICT_RUN_H_
#define MEGATRON_TRAIN_PLANNING_PREDICT_RUN_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "megatron/train/config/config.pb.h"
#include "megatron/train/metrics/step_comparison.pb.h"

namespace megatron {

struct PlanningFacts;

// Returns the parts of a step, with their predictions. Expects a valid configuration with its
// computed fields set; where system.device is unset, it is that of the facts' hardware. Errors are
// those of ExplainStep().
absl::StatusOr<StepComparison> PredictRun(const config::PretrainConfig& config,
                                          int64_t padded_vocab_size, const PlanningFacts& facts);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_PLANNING_PREDICT_RUN_H_
