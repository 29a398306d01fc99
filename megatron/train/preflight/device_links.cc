#include "megatron/train/preflight/device_links.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "megatron/base/status_macros.h"
#include "megatron/comm/nccl/nccl_api.h"
#include "megatron/tensor/cuda_device.h"

namespace megatron {
namespace {

constexpr int64_t kUuidBytes = 16;

absl::StatusOr<DeviceLinks> Choose(const RunOptions& options, bool each_has_its_own) {
  const bool possible = each_has_its_own && NcclLibrary() != nullptr;
  if (options.ranks.backend == DistributedBackend::kNccl && !possible) {
    return absl::InvalidArgumentError(
        "parallel.distributed_backend = nccl: NCCL takes a GPU for each rank, and here ranks share "
        "one; leave it unset, or start fewer ranks on a machine");
  }
  const CollectiveAlgorithm algorithm = options.parallel.algorithm;
  if (possible && options.ranks.backend != DistributedBackend::kHost &&
      algorithm != CollectiveAlgorithm::kMesh) {
    return absl::InvalidArgumentError(absl::StrCat(
        "parallel.collective_algorithm = ", Name(algorithm),
        ": NCCL links these GPUs, and chooses its own; set NCCL_ALGO for it instead, or "
        "parallel.distributed_backend: host"));
  }
  if (possible && options.ranks.backend != DistributedBackend::kHost)
    return DeviceLinks{true, absl::StrCat("NCCL ", NcclLibrary()->Version())};
  const DataParallelOptions& data = options.trainer.data_parallel;
  if (data.overlap_grad_reduce || data.overlap_param_gather) {
    return absl::InvalidArgumentError(absl::StrCat(
        data.overlap_grad_reduce ? "parallel.overlap_grad_reduce" : "parallel.overlap_param_gather",
        ": on GPUs NCCL alone overlaps, and here ",
        each_has_its_own ? "it is not used" : "ranks share a GPU"));
  }
  return DeviceLinks{
      false, each_has_its_own ? "through host memory" : "ranks share a GPU, through host memory"};
}

// Returns the uuids of the GPUs of all processes. A collective call.
absl::StatusOr<std::vector<std::string>> UuidsOf(int local_rank, const ProcessGroup& processes) {
  std::string mine = CudaFacts(DeviceOfRank(local_rank)).uuid;
  mine.resize(kUuidBytes);
  std::string all(kUuidBytes * processes.size(), '\0');
  processes.AllGather(Tensor(mine.data(), DType::kUInt8, {kUuidBytes}),
                      Tensor(all.data(), DType::kUInt8, {static_cast<int64_t>(all.size())}),
                      Stream::Inline());
  MEGATRON_RETURN_IF_ERROR(processes.status());
  std::vector<std::string> uuids;
  for (int rank = 0; rank < processes.size(); ++rank)
    uuids.push_back(all.substr(kUuidBytes * rank, kUuidBytes));
  return uuids;
}

}  // namespace

int DeviceOfRank(int local_rank) { return local_rank % CudaDeviceCount(); }

absl::StatusOr<DeviceLinks> LinkThreads(const RunOptions& options) {
  if (options.num_ranks() == 1) return DeviceLinks();
  return Choose(options, options.num_ranks() <= CudaDeviceCount());
}

absl::StatusOr<DeviceLinks> LinkProcesses(const RunOptions& options, int local_rank,
                                          const ProcessGroup& processes) {
  MEGATRON_ASSIGN_OR_RETURN(std::vector<std::string> uuids, UuidsOf(local_rank, processes));
  std::sort(uuids.begin(), uuids.end());
  const bool distinct = std::adjacent_find(uuids.begin(), uuids.end()) == uuids.end();
  return Choose(options, distinct);
}

absl::StatusOr<std::vector<int>> ProcessesOnSameGpu(int local_rank, const ProcessGroup& processes) {
  MEGATRON_ASSIGN_OR_RETURN(const std::vector<std::string> uuids, UuidsOf(local_rank, processes));
  const std::string& mine = uuids[static_cast<size_t>(processes.rank())];
  std::vector<int> same;
  for (int rank = 0; rank < processes.size(); ++rank) {
    if (uuids[static_cast<size_t>(rank)] == mine) same.push_back(rank);
  }
  return same;
}

}  // namespace megatron
