#ifndef MEGATRON_TRAIN_PREFLIGHT_CHECK_MEMORY_H_
#define MEGATRON_TRAIN_PREFLIGHT_CHECK_MEMORY_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "megatron/base/file_system.h"
#include "megatron/train/trainer/run_options.h"
#include "megatron/train/trainer/run_plan.h"

namespace megatron {

// Returns the bytes that the system could give this process without swapping, and no more than its
// control group (the limit of a container, a job or a service) and each group above it have left;
// nothing where nobody says. /proc and /sys are those below `root`.
std::optional<int64_t> AvailableHostBytes(const std::string& root = "");

// Returns the bytes that a control group whose files are in the directory has left (version 2's
// memory.max or version 1's memory.limit_in_bytes); nothing where there is no limit. File pages
// that can be dropped count as left.
std::optional<int64_t> ControlGroupBytes(const std::string& directory);

// The host memory that the run takes of this machine, of which it runs `ranks` ranks.
int64_t HostBytes(const RunOptions& options, const RunPlan& plan, int ranks);

// The host memory that `ranks` ranks on GPUs take of this machine beside their GPUs'.
int64_t HostBytesBesideGpus(const RunOptions& options, const RunPlan& plan, int ranks);

// Checks that `available` bytes of this machine's memory are enough for `ranks` ranks of the run,
// which on GPUs need it for what they offload.
absl::Status CheckHostMemory(const RunOptions& options, const RunPlan& plan, int ranks,
                             std::optional<int64_t> available);

// A GPU of a machine, and the ranks that have it.
struct GpuShare {
  int gpu = 0;             // its number on the machine
  std::vector<int> ranks;  // ascending
  int64_t free_bytes = 0;
};

// Returns the free bytes of each GPU of this machine that `ranks` ranks would have; 0 for one that
// this process cannot use. No other GPU is asked: asking takes some of its memory.
std::vector<int64_t> FreeGpuBytes(int ranks);
// The same of a machine with so many GPUs, of which `free_bytes` tells.
std::vector<int64_t> FreeGpuBytes(int ranks, int gpus,
                                  const std::function<int64_t(int gpu)>& free_bytes);

// Shares the ranks of a machine, `count` of them from `first` on, out among its GPUs, which have
// these free bytes, as DeviceOfRank (device_links.h) does. GPUs without a rank are left out,
// and may be left out of `free_bytes`.
std::vector<GpuShare> ShareGpus(int first, int count, const std::vector<int64_t>& free_bytes);

// Checks that each GPU has the memory that its ranks take together.
absl::Status CheckGpus(const RunPlan& plan, const std::vector<GpuShare>& gpus);

// Checks that this machine's memory is enough for `ranks` ranks of the run, and that each of `gpus`
// is for its own. On the CPU there are none.
absl::Status CheckMemory(const RunOptions& options, const RunPlan& plan, int ranks,
                         const std::vector<GpuShare>& gpus);

// The comparison for the memory of runs on the CPU: fails where more is planned than available,
// unless nobody knows how much is.
absl::Status CheckFits(int64_t planned, std::optional<int64_t> available);

// The comparison for what a run on GPUs takes of the host, of which `offloaded` bytes are what GPUs
// keep there. The message names the settings by which they do, and no others.
absl::Status CheckHostFits(const RunOptions& options, int64_t planned, int64_t offloaded,
                           std::optional<int64_t> available);

// Returns how many bytes the file system of the directory has left, which is that of the nearest
// directory above it if it is not there; nothing where nobody says.
std::optional<int64_t> FreeDiskBytes(FileSystem& fs, const std::string& directory);

// Returns the number of the device that holds a path; kNotFound if the path is not there.
using DeviceOfPath = std::function<absl::StatusOr<uint64_t>(const std::string& path)>;

// The operating system's DeviceOfPath. A link is on the device of what it refers to.
absl::StatusOr<uint64_t> DeviceOnDisk(const std::string& path);

// Checks that the folders of optimizer.optimizer_offload_path and parallel.param_offload_path have
// room for the files of `ranks` ranks of the run. Folders on one device share its room.
absl::Status CheckDisk(FileSystem& fs, const RunOptions& options, const RunPlan& plan, int ranks,
                       const DeviceOfPath& device_of = DeviceOnDisk);

// Checks that the folder of checkpoint.save has room for a checkpoint of all ranks, and
// `local_directory` for the local checkpoints of this machine, which runs `ranks` ranks: each
// beside the other and the ranks' files, where these are on the same device. `local_directory` is
// that of checkpoint.local_save; empty: there is none, or it isn't known. A save that finds too
// little is no failure of the run.
absl::Status CheckRoomForCheckpoint(FileSystem& fs, const RunOptions& options, const RunPlan& plan,
                                    int ranks, const std::string& local_directory,
                                    const DeviceOfPath& device_of = DeviceOnDisk);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_PREFLIGHT_CHECK_MEMORY_H_
