// Runs of the training program on this machine, and what the machine did beside them.
#ifndef TOOLS_CALIBRATION_WATCHED_RUN_H_
#define TOOLS_CALIBRATION_WATCHED_RUN_H_

#include <string>

#include "absl/status/statusor.h"
#include "megatron/plan/measured_kernels.h"
#include "megatron/plan/plan_facts.pb.h"
#include "tools/calibration/check_layouts.h"
#include "tools/calibration/check_report.h"
#include "tools/calibration/measure_cores.h"

namespace megatron {

// Returns the path of the training program, which lies beside this one in the build.
std::string TrainingProgram();

// Returns the rates of a core in the probe when it was calibrated. kInvalidArgument if no kernel of
// this hardware is near the probe's.
absl::StatusOr<ProbeRates> CalibratedRates(const Hardware& hardware,
                                           const MeasuredKernels& kernels);

// Trains the layout's model, whose configuration is in the file, and returns the median seconds of
// the steps after the first few. The cores are probed before and after that.
absl::StatusOr<CheckedRun> RunWatched(const CheckedLayout& layout, const std::string& config_file,
                                      int cores, const ProbeRates& calibrated);

}  // namespace megatron

#endif  // TOOLS_CALIBRATION_WATCHED_RUN_H_
