// The cores of the ranks of a machine (system.bind_cores_to_rank).
#ifndef MEGATRON_TRAIN_PREFLIGHT_RANK_CORES_H_
#define MEGATRON_TRAIN_PREFLIGHT_RANK_CORES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "megatron/base/core_binding.h"
#include "megatron/tensor/device.h"

namespace megatron {

// Returns the shares of the ranks of this machine, by their numbers on it, in the hardware threads
// `allowed`. Those of ranks on GPUs are near their GPUs.
absl::StatusOr<std::vector<CoreShare>> CoresOfRanks(DeviceType device, int ranks,
                                                    absl::Span<const int> allowed);

// Returns "0-3 of node 0", as the log says it.
std::string DescribeCores(const CoreShare& share);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_PREFLIGHT_RANK_CORES_H_
