// The recurrences of Mamba-2 layers and of gated delta nets, one group of heads over a sequence.
#ifndef TOOLS_CALIBRATION_RECURRENCE_KERNELS_H_
#define TOOLS_CALIBRATION_RECURRENCE_KERNELS_H_

#include <vector>

#include "megatron/plan/measured_kernels.h"
#include "tools/calibration/calibration_rank.h"

namespace megatron::calibration {

// The shapes that are measured.
std::vector<KernelShape> RecurrenceShapes();

bool IsRecurrence(const KernelShape& shape);

// Returns the FLOPs of one run of the kernel below, as the planner counts them.
double RecurrenceFlops(const KernelShape& shape);
MakeKernel RecurrenceOfShape(const KernelShape& shape);

}  // namespace megatron::calibration

#endif  // TOOLS_CALIBRATION_RECURRENCE_KERNELS_H_
