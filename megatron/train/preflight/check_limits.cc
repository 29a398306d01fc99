#include "megatron/train/preflight/check_limits.h"

#include <dirent.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "megatron/base/quantity.h"
#include "megatron/base/status_macros.h"

namespace megatron {
namespace {

// More would make programs slow that close all numbers that a file may have.
constexpr rlim_t kMostOpenFiles = 65536;

// A rank has two connections to every other, for data and for control, and the first rank a third,
// for the store.
constexpr int64_t kConnectionsPerRank = 3;
// What a process opens besides: the listening sockets, connections in the handshake, wake-ups,
// logs, metrics, files of data and of checkpoints.
constexpr int64_t kOtherFiles = 32;

template <typename Resource>
std::optional<int64_t> LimitOf(Resource resource) {
  rlimit limit;
  if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  constexpr rlim_t kMost = std::numeric_limits<int64_t>::max();
  return static_cast<int64_t>(std::min(limit.rlim_cur, kMost));
}

// Returns what `used` leaves of the limit.
std::optional<int64_t> Left(std::optional<int64_t> limit, int64_t used) {
  if (!limit.has_value()) return limit;
  return std::max<int64_t>(0, *limit - used);
}

// Returns 0 if the system does not tell.
int64_t AddressBytesInUse() {
  std::ifstream statm("/proc/self/statm");
  int64_t pages = 0;
  statm >> pages;
  return pages * sysconf(_SC_PAGESIZE);
}

// Returns 0 if the system does not tell.
int64_t OpenFiles() {
  DIR* const directory = opendir("/proc/self/fd");
  if (directory == nullptr) return 0;
  int64_t count = -1;  // the directory itself is open meanwhile
  while (const dirent* const entry = readdir(directory)) count += entry->d_name[0] != '.';
  closedir(directory);
  return count;
}

// Returns the greatest sum of `bytes_of` the stages' ranks that one process holds.
template <typename BytesOf>
int64_t OfProcess(const RunOptions& options, const RunPlan& plan, std::optional<int> rank,
                  const BytesOf& bytes_of) {
  int64_t sum = 0, most = 0;
  for (const RankPlan& stage : plan.stages) {
    const int64_t bytes = bytes_of(stage);
    if (rank.has_value() && std::binary_search(stage.ranks.begin(), stage.ranks.end(), *rank))
      return bytes;
    sum += plan.ranks_per_stage * bytes;
    most = std::max(most, bytes);
  }
  return rank.has_value() || options.ranks.processes ? most : sum;
}

// Returns the longest of the files that `bytes_of` each stage's ranks that the process holds.
template <typename BytesOf>
int64_t LongestOfProcess(const RunPlan& plan, std::optional<int> rank, const BytesOf& bytes_of) {
  int64_t longest = 0;
  for (const RankPlan& stage : plan.stages) {
    const bool is_held =
        !rank.has_value() || std::binary_search(stage.ranks.begin(), stage.ranks.end(), *rank);
    if (is_held) longest = std::max<int64_t>(longest, bytes_of(stage));
  }
  return longest;
}

absl::Status CheckAddresses(const ProcessLimits& limits, const RunOptions& options,
                            const RunPlan& plan, std::optional<int> rank) {
  const bool on_gpus = options.device == DeviceType::kCuda;
  const int64_t planned =
      plan.data_bytes + OfProcess(options, plan, rank, [&](const RankPlan& stage) {
        return stage.host_bytes() + (on_gpus ? 0 : stage.total_bytes());
      });
  if (!limits.address_bytes.has_value() || planned <= *limits.address_bytes)
    return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "a process of the run allocates ", FormatBytes(planned),
      " and the limit of its addresses (ulimit -v) leaves ", FormatBytes(*limits.address_bytes),
      "; raise the limit (ulimit -v unlimited). --dry_run says what takes it"));
}

absl::Status CheckFile(const ProcessLimits& limits, const char* field, const char* file,
                       const std::string& directory, int64_t planned) {
  if (!limits.file_bytes.has_value() || planned <= *limits.file_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      field, ": a rank's ", file, " in '", directory, "' has ", FormatBytes(planned),
      " and no file of this process may have more than ", FormatBytes(*limits.file_bytes),
      " (ulimit -f); raise the limit (ulimit -f unlimited), or use more ranks"));
}

}  // namespace

ProcessLimits LimitsOfThisProcess() {
  ProcessLimits limits;
  limits.address_bytes = Left(LimitOf(RLIMIT_AS), AddressBytesInUse());
  limits.file_bytes = LimitOf(RLIMIT_FSIZE);
  limits.open_files = Left(LimitOf(RLIMIT_NOFILE), OpenFiles());
  return limits;
}

absl::Status CheckLimits(const ProcessLimits& limits, const RunOptions& options,
                         const RunPlan& plan, std::optional<int> rank) {
  MEGATRON_RETURN_IF_ERROR(CheckAddresses(limits, options, plan, rank));
  const auto longest = [&](const auto& bytes_of) { return LongestOfProcess(plan, rank, bytes_of); };
  MEGATRON_RETURN_IF_ERROR(CheckFile(
      limits, "optimizer.optimizer_offload_path", "file of states", options.trainer.state_directory,
      longest([](const RankPlan& stage) { return stage.file_bytes; })));
  MEGATRON_RETURN_IF_ERROR(CheckFile(
      limits, "parallel.param_offload_path", "file of weights", options.trainer.weight_directory,
      longest([](const RankPlan& stage) { return stage.weight_file_bytes; })));
  // Only the first rank of a stage is known to write as much.
  const int64_t shard = longest([&](const RankPlan& stage) {
    return !rank.has_value() || stage.ranks.front() == *rank ? stage.shard_bytes : 0;
  });
  const CheckpointOptions& checkpoint = options.checkpoint;
  const bool saves = !checkpoint.save.empty();
  return CheckFile(limits, saves ? "checkpoint.save" : "checkpoint.local_save",
                   "shard of a checkpoint", saves ? checkpoint.save : checkpoint.local_save, shard);
}

absl::Status CheckOpenFiles(const ProcessLimits& limits, int world_size) {
  if (world_size == 1) return absl::OkStatus();
  const int64_t needed = kConnectionsPerRank * (world_size - 1) + kOtherFiles;
  if (!limits.open_files.has_value() || needed <= *limits.open_files) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("each of ", FormatQuantity(world_size, "rank"),
                   " has connections to every other and opens up to ", needed,
                   " files and connections, and the limit of open files (ulimit -n) leaves ",
                   *limits.open_files, "; raise the limit, or start fewer ranks"));
}

void PrepareForLimits() {
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t wanted = std::min(limit.rlim_max, kMostOpenFiles);
  if (limit.rlim_cur >= wanted) return;
  limit.rlim_cur = wanted;
  // Where the system refuses, the old limit holds.
  static_cast<void>(setrlimit(RLIMIT_NOFILE, &limit));
}

}  // namespace megatron
