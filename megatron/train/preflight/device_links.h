// Connects the GPUs of a run's ranks: by NCCL if each rank has a GPU of its own, else through host
// memory.
#ifndef MEGATRON_TRAIN_PREFLIGHT_DEVICE_LINKS_H_
#define MEGATRON_TRAIN_PREFLIGHT_DEVICE_LINKS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "megatron/comm/process_group.h"
#include "megatron/train/trainer/run_options.h"

namespace megatron {

struct DeviceLinks {
  bool nccl = false;
  std::string text;  // "NCCL 2.28.9"
};

// Returns the GPU of rank `local_rank` of its machine. The ranks divide the GPUs among themselves,
// and share a GPU if there are more ranks than GPUs.
int DeviceOfRank(int local_rank);

// Returns the links of ranks that are threads of this process, each on the GPU of its number.
absl::StatusOr<DeviceLinks> LinkThreads(const RunOptions& options);
// Returns the links of this process, one of several. A collective call over them, with the same
// result on all.
absl::StatusOr<DeviceLinks> LinkProcesses(const RunOptions& options, int local_rank,
                                          const ProcessGroup& processes);

// Returns the processes, ascending and this one among them, that have the GPU of this one, which is
// rank `local_rank` of its machine. A collective call.
absl::StatusOr<std::vector<int>> ProcessesOnSameGpu(int local_rank, const ProcessGroup& processes);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_PREFLIGHT_DEVICE_LINKS_H_
