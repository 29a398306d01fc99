// The products of a run that no measured kernel is near to.
#ifndef MEGATRON_TOOLS_PLAN_MISSING_SHAPES_H_
#define MEGATRON_TOOLS_PLAN_MISSING_SHAPES_H_

#include <string>

#include "megatron/plan/measured_kernels.h"
#include "megatron/plan/plan_facts.pb.h"
#include "megatron/train/planning/planned_run.h"

namespace megatron {

// Returns a line that names those of a dense layer, whose times a curve gives; empty if all are
// measured. Expects tensor-parallel ranks that form no grid.
std::string MissingShapes(const PlannedRun& run, const Hardware& hardware,
                          const MeasuredKernels& kernels);

}  // namespace megatron

#endif  // MEGATRON_TOOLS_PLAN_MISSING_SHAPES_H_
