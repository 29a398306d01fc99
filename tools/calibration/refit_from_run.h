// Fits two constants of this program to what a run has measured of itself.
#ifndef TOOLS_CALIBRATION_REFIT_FROM_RUN_H_
#define TOOLS_CALIBRATION_REFIT_FROM_RUN_H_

#include <string>

#include "absl/status/statusor.h"
#include "megatron/base/file_system.h"

namespace megatron {

struct RefitFiles {
  std::string run;       // a directory of checkpoints, with the comparison that a run has made
  std::string hardware;  // the file to change
  std::string kernels;   // measured kernels; empty: kernels.csv beside the hardware, if it is there
};

// Finds the measured_efficiency with which the run's computing is predicted to take what it took,
// and the step_seconds that its steps took beside what is predicted at all, and writes both into
// the hardware file, whose comments stay. Returns a line about it. Errors are kInvalidArgument
// where a file is wrong, and kFailedPrecondition where no measured kernel is near the run's
// products.
absl::StatusOr<std::string> RefitFromRun(FileSystem& fs, const RefitFiles& files);

}  // namespace megatron

#endif  // TOOLS_CALIBRATION_REFIT_FROM_RUN_H_
