#ifndef MEGATRON_TRAIN_PREFLIGHT_CHECK_SAME_KERNELS_H_
#define MEGATRON_TRAIN_PREFLIGHT_CHECK_SAME_KERNELS_H_

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "megatron/train/preflight/open_checkpoint.h"

namespace megatron {

// Compares the kernels of a run on a GPU (DescribeKernels, open_devices.h) with those of the run
// that it continues, if its checkpoint tells. `warn` hears what differs; if the run is to be
// deterministic, the difference is an error instead, with kExitConfig.
absl::Status CheckSameKernels(const StartingPoint& start, const std::string& kernels,
                              bool deterministic, absl::FunctionRef<void(const std::string&)> warn);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_PREFLIGHT_CHECK_SAME_KERNELS_H_
