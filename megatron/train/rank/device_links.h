// How the ranks of a run send each other what is on their GPUs: by NCCL where each rank has a GPU
// of its own, else through the memory of hosts.
#ifndef MEGATRON_TRAIN_RANK_DEVICE_LINKS_H_
#define MEGATRON_TRAIN_RANK_DEVICE_LINKS_H_

#include <functional>
#include <map>
#include <mutex>
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

// The GPU of the rank that is number `local_rank` of its machine. Ranks share the GPUs out, and
// share a GPU if there are more ranks than GPUs.
int DeviceOfRank(int local_rank);

// Chooses for ranks that are threads of this process, each on the GPU of its number.
absl::StatusOr<DeviceLinks> LinkThreads(const RunOptions& options);
// Chooses for this process, one of several. Collective over them; all choose the same.
absl::StatusOr<DeviceLinks> LinkProcesses(const RunOptions& options, int local_rank,
                                          const ProcessGroup& processes);

// The calls that the GPUs of this process's ranks have not finished, for whoever watches the ranks.
// Any thread may call.
class DeviceCalls {
 public:
  using Lines = std::function<std::vector<std::string>()>;

  // Null: the rank has no more calls.
  void Set(int rank, Lines lines);
  std::vector<std::string> Of(int rank) const;

 private:
  mutable std::mutex mutex_;
  std::map<int, Lines> lines_;
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_RANK_DEVICE_LINKS_H_
