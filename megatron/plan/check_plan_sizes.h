// Sizes of which PredictStep (step_prediction.h) can predict a step.
#ifndef MEGATRON_PLAN_CHECK_PLAN_SIZES_H_
#define MEGATRON_PLAN_CHECK_PLAN_SIZES_H_

#include "absl/status/status.h"
#include "megatron/plan/plan_facts.pb.h"
#include "megatron/plan/step_prediction.h"

namespace megatron {

// Returns kInvalidArgument with what can't be: a size below 1, more stages than layers, sizes that
// tensor-parallel ranks can't share out evenly, more ranks than experts, a precision that the
// hardware doesn't have.
absl::Status CheckPlanSizes(const Hardware& gpu, const PlanModel& model, const PlanLayout& layout);

}  // namespace megatron

#endif  // MEGATRON_PLAN_CHECK_PLAN_SIZES_H_
