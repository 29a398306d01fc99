#include "megatron/train/preflight/check_memory.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "megatron/base/quantity.h"
#include "megatron/base/status_macros.h"
#include "megatron/checkpoint/local/save_local_checkpoint.h"
#include "megatron/tensor/cuda_device.h"

namespace megatron {
namespace {

constexpr char kWhatTakesLess[] =
    "--dry_run says what takes it. A smaller train.micro_batch_size, recompute or bf16 take less.";

// Returns the number that a file begins with; nothing if there is none or it is negative.
std::optional<int64_t> NumberIn(const std::string& path) {
  std::ifstream file(path);
  int64_t number = 0;
  if (file >> number && number >= 0) return number;
  return std::nullopt;
}

// Returns the number behind the name in a file of names and numbers; 0 if it is not there or
// negative.
int64_t NumberOf(const std::string& path, const std::string& wanted) {
  std::ifstream file(path);
  std::string name;
  int64_t number = 0;
  while (file >> name >> number) {
    if (name == wanted) return std::max<int64_t>(0, number);
  }
  return 0;
}

// Returns what is left of a limit. No sum of these numbers, none of which is negative, overflows.
int64_t Left(int64_t most, int64_t used, int64_t droppable) {
  used -= std::min(used, droppable);
  return most - std::min(most, used);
}

std::optional<int64_t> Smaller(std::optional<int64_t> a, std::optional<int64_t> b) {
  if (!a.has_value()) return b;
  return b.has_value() ? std::min(*a, *b) : a;
}

// Returns what the system could give without swapping.
std::optional<int64_t> SystemBytes(const std::string& root) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max() / 1024;
  std::ifstream meminfo(root + "/proc/meminfo");
  std::string name, unit;
  int64_t kilobytes = 0;
  while (meminfo >> name >> kilobytes >> unit) {
    if (name == "MemAvailable:" && kilobytes >= 0 && kilobytes <= kMost) return kilobytes * 1024;
  }
  return std::nullopt;
}

// Returns the least that the group at `path` below the mounted directory, or a group above it, has
// left. Where the path is one of another name space, only those levels that are mounted here count.
std::optional<int64_t> BytesOfGroupAndAncestors(const std::string& mounted,
                                                absl::string_view path) {
  std::optional<int64_t> least = ControlGroupBytes(mounted);
  const std::vector<absl::string_view> names = absl::StrSplit(path, '/', absl::SkipEmpty());
  // A group outside of this name space's root has no directory below the mounted one.
  if (absl::c_linear_search(names, "..")) return least;
  std::string directory = mounted;
  for (const absl::string_view name : names) {
    absl::StrAppend(&directory, "/", name);
    least = Smaller(least, ControlGroupBytes(directory));
  }
  return least;
}

// Returns the least that this process's control groups have left.
std::optional<int64_t> BytesOfOwnGroups(const std::string& root) {
  // Linux has no longer path of a group.
  constexpr size_t kLongestPath = 4096;
  const std::string version_2 = root + "/sys/fs/cgroup", version_1 = version_2 + "/memory";
  std::optional<int64_t> least =
      Smaller(ControlGroupBytes(version_2), ControlGroupBytes(version_1));
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    // A line is "hierarchy:controllers:path".
    const std::vector<absl::string_view> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() < 3 || parts[2].size() > kLongestPath) continue;
    const std::vector<absl::string_view> controllers = absl::StrSplit(parts[1], ',');
    if (parts[0] == "0" && parts[1].empty()) {
      least = Smaller(least, BytesOfGroupAndAncestors(version_2, parts[2]));
    } else if (absl::c_linear_search(controllers, "memory")) {
      least = Smaller(least, BytesOfGroupAndAncestors(version_1, parts[2]));
    }
  }
  return least;
}

// Returns what `of` returns for the directory, or for the nearest one above it if it is not there;
// nothing if that fails.
template <typename Value, typename Of>
std::optional<Value> OfNearest(const std::string& directory, const Of& of) {
  for (std::string path = directory;; path = ParentPath(path)) {
    const absl::StatusOr<Value> value = of(path);
    if (value.ok()) return *value;
    if (!absl::IsNotFound(value.status()) || path == ParentPath(path)) return std::nullopt;
  }
}

// A setting by which GPUs keep something in host memory, and what makes that less.
struct Offload {
  const char* field;
  const char* remedy;  // null: none that leaves the others as they are
};

std::vector<Offload> OffloadsOf(const RunOptions& options) {
  const TrainerOptions& trainer = options.trainer;
  // These have the processor update all states.
  const bool needs_all_states = trainer.gradients_on_host || trainer.weights_on_host ||
                                trainer.optimizer.delayed_gradients.has_value();
  std::vector<Offload> offloads;
  const auto add = [&](bool is_set, const char* field, const char* remedy) {
    if (is_set) offloads.push_back({field, remedy});
  };
  add(trainer.host_fraction > 0, "optimizer.optimizer_cpu_offload",
      needs_all_states ? nullptr : "with a smaller optimizer.optimizer_offload_fraction");
  add(trainer.gradients_on_host, "parallel.grad_cpu_offload", "without parallel.grad_cpu_offload");
  add(trainer.weights_on_host, "parallel.param_cpu_offload",
      trainer.weight_directory.empty() ? "without parallel.param_cpu_offload" : nullptr);
  add(trainer.model.num_offloaded_layers > 0, "recompute.cpu_offloading_num_layers",
      "with a smaller recompute.cpu_offloading_num_layers");
  add(trainer.model.attention_on_host, "recompute.attention_chunks_on_host",
      "without recompute.attention_chunks_on_host");
  return offloads;
}

bool AreOnOneDevice(const DeviceOfPath& device_of, const std::string& a, const std::string& b) {
  const std::optional<uint64_t> device = OfNearest<uint64_t>(a, device_of);
  return a == b || (device.has_value() && device == OfNearest<uint64_t>(b, device_of));
}

// Bytes that files take in a folder.
struct Room {
  const char* files;
  std::string directory;
  int64_t bytes = 0;
};

// Returns the most bytes of the local checkpoints that a machine of `ranks` ranks holds at once.
int64_t LocalRoom(const RunOptions& options, const RunPlan& plan, int ranks) {
  const int64_t headers_and_manifests = plan.checkpoint_room() - plan.checkpoint_bytes();
  return kLocalCheckpoints * (1 + options.checkpoint.peer_copies) *
         (plan.OfRanks(&RankPlan::local_bytes, ranks) + headers_and_manifests);
}

// Checks that there is room for `mine` beside those of `others` that are on its device. `takes` is
// the start of the message.
absl::Status CheckRoom(FileSystem& fs, const DeviceOfPath& device_of, const char* takes,
                       const Room& mine, const std::vector<Room>& others) {
  const std::optional<int64_t> free = FreeDiskBytes(fs, mine.directory);
  int64_t needed = mine.bytes;
  std::vector<std::string> beside;
  for (const Room& other : others) {
    if (other.bytes == 0 || !AreOnOneDevice(device_of, other.directory, mine.directory)) continue;
    needed += other.bytes;
    beside.push_back(
        absl::StrCat(FormatBytes(other.bytes), " of ", other.files, " in '", other.directory, "'"));
  }
  if (!free.has_value() || needed <= *free) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      takes, " up to ", FormatBytes(mine.bytes), " in '", mine.directory, "'",
      beside.empty() ? "" : absl::StrCat(", beside ", absl::StrJoin(beside, " and "), ","), " and ",
      FormatBytes(*free), " are free; a save may fail until there are more"));
}

}  // namespace

std::optional<int64_t> ControlGroupBytes(const std::string& directory) {
  const std::string file = absl::StrCat(directory, "/memory.");
  // "max" is no number: without a limit, nothing is returned.
  if (const std::optional<int64_t> most = NumberIn(file + "max")) {
    return Left(*most, NumberIn(file + "current").value_or(0),
                NumberOf(file + "stat", "inactive_file"));
  }
  if (const std::optional<int64_t> most = NumberIn(file + "limit_in_bytes")) {
    return Left(*most, NumberIn(file + "usage_in_bytes").value_or(0),
                NumberOf(file + "stat", "total_inactive_file"));
  }
  return std::nullopt;
}

std::optional<int64_t> AvailableHostBytes(const std::string& root) {
  return Smaller(SystemBytes(root), BytesOfOwnGroups(root));
}

int64_t HostBytes(const RunOptions& options, const RunPlan& plan, int ranks) {
  return plan.machine_bytes(ranks, options.ranks.processes ? ranks : 1);
}

absl::Status CheckFits(int64_t planned, std::optional<int64_t> available) {
  if (!available.has_value() || planned <= *available) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the run takes ", FormatBytes(planned),
                                                 " of memory and ", FormatBytes(*available),
                                                 " are available; ", kWhatTakesLess));
}

std::vector<int64_t> FreeGpuBytes(int ranks, int gpus,
                                  const std::function<int64_t(int gpu)>& free_bytes) {
  std::vector<int64_t> bytes;
  for (int gpu = 0; gpu < std::min(ranks, gpus); ++gpu) bytes.push_back(free_bytes(gpu));
  return bytes;
}

std::vector<int64_t> FreeGpuBytes(int ranks) {
  return FreeGpuBytes(ranks, CudaDeviceCount(),
                      [](int gpu) { return CudaMemoryOf(gpu).free_bytes; });
}

std::vector<GpuShare> ShareGpus(int first, int count, const std::vector<int64_t>& free_bytes) {
  const int gpus = static_cast<int>(free_bytes.size());
  std::vector<GpuShare> shares;
  for (int gpu = 0; gpu < std::min(gpus, count); ++gpu) {
    GpuShare share;
    share.gpu = gpu;
    share.free_bytes = free_bytes[static_cast<size_t>(gpu)];
    for (int local_rank = gpu; local_rank < count; local_rank += gpus)
      share.ranks.push_back(first + local_rank);
    shares.push_back(std::move(share));
  }
  return shares;
}

absl::Status CheckGpus(const RunPlan& plan, const std::vector<GpuShare>& gpus) {
  std::map<int, int64_t> bytes_of_rank;
  for (const RankPlan& stage : plan.stages) {
    for (const int rank : stage.ranks) bytes_of_rank[rank] = stage.total_bytes();
  }
  for (const GpuShare& share : gpus) {
    int64_t planned = 0;
    for (const int rank : share.ranks) planned += bytes_of_rank.at(rank);
    if (planned <= share.free_bytes) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(DescribeRanks(share.ranks), share.ranks.size() == 1 ? " takes " : " take ",
                     FormatBytes(planned), " of the memory of GPU ", share.gpu, " and ",
                     FormatBytes(share.free_bytes), " are available; ", kWhatTakesLess));
  }
  return absl::OkStatus();
}

int64_t HostBytesBesideGpus(const RunOptions& options, const RunPlan& plan, int ranks) {
  const int processes = options.ranks.processes ? ranks : 1;
  return plan.host_bytes(ranks) + processes * (plan.data_bytes + plan.program_bytes);
}

absl::Status CheckHostFits(const RunOptions& options, int64_t planned, int64_t offloaded,
                           std::optional<int64_t> available) {
  if (!available.has_value() || planned <= *available) return absl::OkStatus();
  std::vector<std::string> fields, remedies;
  for (const Offload& offload : OffloadsOf(options)) {
    fields.push_back(offload.field);
    if (offload.remedy != nullptr) remedies.push_back(offload.remedy);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "the run takes ", FormatBytes(planned), " of this machine's memory, ", FormatBytes(offloaded),
      " of it for what GPUs keep there",
      fields.empty() ? "" : absl::StrCat(" (", absl::StrJoin(fields, ", "), ")"), ", and ",
      FormatBytes(*available), " are available",
      remedies.empty() ? "" : absl::StrCat("; less is taken ", absl::StrJoin(remedies, ", or "))));
}

std::optional<int64_t> FreeDiskBytes(FileSystem& fs, const std::string& directory) {
  return OfNearest<int64_t>(directory, [&](const std::string& path) { return fs.FreeBytes(path); });
}

absl::StatusOr<uint64_t> DeviceOnDisk(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0)
    return absl::ErrnoToStatus(errno, absl::StrCat("stat '", path, "'"));
  return static_cast<uint64_t>(info.st_dev);
}

absl::Status CheckDisk(FileSystem& fs, const RunOptions& options, const RunPlan& plan, int ranks,
                       const DeviceOfPath& device_of) {
  const std::string& of_states = options.trainer.state_directory;
  const std::string& of_weights = options.trainer.weight_directory;
  const int64_t states = plan.file_bytes(ranks), weights = plan.weight_file_bytes(ranks);
  // `places` names the folders whose files need the room together.
  const auto check = [&](const char* field, const std::string& directory, int64_t planned,
                         const std::string& places, const char* remedy) {
    const std::optional<int64_t> free = planned == 0 ? std::nullopt : FreeDiskBytes(fs, directory);
    if (!free.has_value() || planned <= *free) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        field, ": the files of ", FormatQuantity(ranks, "rank"), " take ", FormatBytes(planned),
        " in ", places, " and ", FormatBytes(*free), " are free; ", remedy));
  };
  const std::string quoted_states = absl::StrCat("'", of_states, "'");
  const std::string quoted_weights = absl::StrCat("'", of_weights, "'");
  MEGATRON_RETURN_IF_ERROR(check("optimizer.optimizer_offload_path", of_states, states,
                                 quoted_states,
                                 "a smaller optimizer.optimizer_offload_fraction takes less"));
  // On one device there is room for both.
  const bool together =
      weights > 0 && states > 0 && AreOnOneDevice(device_of, of_states, of_weights);
  return check("parallel.param_offload_path", of_weights, together ? states + weights : weights,
               together && of_states != of_weights
                   ? absl::StrCat(quoted_states, " and ", quoted_weights, ", which share a disk,")
                   : quoted_weights,
               "without it weights lie in host memory");
}

absl::Status CheckRoomForCheckpoint(FileSystem& fs, const RunOptions& options, const RunPlan& plan,
                                    int ranks, const std::string& local_directory,
                                    const DeviceOfPath& device_of) {
  const std::string& save = options.checkpoint.save;
  if (save.empty()) return absl::OkStatus();
  const Room saved = {"a checkpoint", save, plan.checkpoint_room()};
  const Room local = {"local checkpoints", local_directory,
                      local_directory.empty() ? 0 : LocalRoom(options, plan, ranks)};
  const Room states = {"files of states", options.trainer.state_directory, plan.file_bytes(ranks)};
  const Room weights = {"files of weights", options.trainer.weight_directory,
                        plan.weight_file_bytes(ranks)};
  MEGATRON_RETURN_IF_ERROR(CheckRoom(fs, device_of, "checkpoint.save: a checkpoint takes", saved,
                                     {local, states, weights}));
  if (local.bytes == 0) return absl::OkStatus();
  return CheckRoom(fs, device_of, "checkpoint.local_save: local checkpoints take", local,
                   {saved, states, weights});
}

absl::Status CheckHostMemory(const RunOptions& options, const RunPlan& plan, int ranks,
                             std::optional<int64_t> available) {
  if (options.device != DeviceType::kCuda)
    return CheckFits(HostBytes(options, plan, ranks), available);
  const int64_t offloaded = plan.host_bytes(ranks);
  if (offloaded == 0) return absl::OkStatus();
  return CheckHostFits(options, HostBytesBesideGpus(options, plan, ranks), offloaded, available);
}

absl::Status CheckMemory(const RunOptions& options, const RunPlan& plan, int ranks,
                         const std::vector<GpuShare>& gpus) {
  MEGATRON_RETURN_IF_ERROR(CheckHostMemory(options, plan, ranks, AvailableHostBytes()));
  return CheckGpus(plan, gpus);
}

}  // namespace megatron
