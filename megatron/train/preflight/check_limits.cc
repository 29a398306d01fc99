#include "megatron/train/preflight/check_limits.h"

#include <dirent.h>
#include <malloc.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "megatron/base/quantity.h"
#include "megatron/base/status_macros.h"
#include "megatron/layers/transformer_options.h"
#include "megatron/models/stage_memory.h"
#include "megatron/train/batches/micro_batch_packer.h"

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
// The process that starts a rank reads its output and its errors.
constexpr int64_t kPipesOfRank = 2;

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

// Returns the addresses of a new thread's stack, with the page that guards it.
int64_t StackBytes() {
  pthread_attr_t attributes;
  if (pthread_getattr_default_np(&attributes) != 0) return 0;
  size_t stack = 0, guard = 0;
  pthread_attr_getstacksize(&attributes, &stack);
  pthread_attr_getguardsize(&attributes, &guard);
  pthread_attr_destroy(&attributes);
  return static_cast<int64_t>(stack + guard);
}

// Returns the number of names in the directory; 0 if the system does not tell.
int64_t CountNames(const char* path) {
  DIR* const directory = opendir(path);
  if (directory == nullptr) return 0;
  int64_t count = 0;
  while (const dirent* const entry = readdir(directory)) count += entry->d_name[0] != '.';
  closedir(directory);
  return count;
}

int64_t OpenFiles() {
  // The directory itself is open meanwhile.
  return std::max<int64_t>(0, CountNames("/proc/self/fd") - 1);
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

// Blocks of this size and more begin at a multiple of it, for the sake of large pages.
constexpr int64_t kLargeBlock = int64_t{2} << 20;
// The largest workspace that kernels have for a thread's share of a loop.
constexpr int64_t kWorkspaceOfThread = int64_t{5} << 20;
// The most sums of each column that kernels keep apart.
constexpr int64_t kMostColumnSums = 128;
// Memory of what the program and a rank keep in lists, messages, and what is being saved.
constexpr int64_t kListsOfProcess = int64_t{16} << 20, kListsOfRank = int64_t{8} << 20;
// What a rank that has met the others holds of that by the time that it is asked itself, and of
// connections to each other rank.
constexpr int64_t kListsOfMetRank = int64_t{8} << 20, kBuffersOfPeer = int64_t{128} << 10;
// A token of a sample, with its label, its weight and its position.
constexpr int64_t kBytesOfToken = 32;

int64_t WithLargePages(int64_t bytes) { return bytes < kLargeBlock ? bytes : bytes + kLargeBlock; }

int64_t ThreadsOfPool(const RunOptions& options, int ranks_here) {
  return std::max(1, options.num_threads / std::max(1, ranks_here));
}

// Returns the number of sources of samples that a rank reads.
int64_t SourcesOf(const RunOptions& options) {
  constexpr int64_t kTrainingAndTest = 2;
  const int64_t validation = options.data.multiple_validation_sets
                                 ? static_cast<int64_t>(options.data.valid_data_path.size())
                                 : 0;
  return kTrainingAndTest + std::max<int64_t>(1, validation) +
         static_cast<int64_t>(options.tasks.files.size());
}

int64_t ReadersOf(const RunOptions& options) {
  // The ranks of a cube read what its inner layers need besides.
  return (options.parallel.tensor_cube ? 2 : 1) * SourcesOf(options);
}

// Returns the most threads that a rank has, its own among them.
int64_t ThreadsOfRank(const RunOptions& options, const RankPlan& stage, int ranks_here) {
  constexpr int64_t kBlocksOfFile = 32;  // at once, each by a thread without io_uring
  const CheckpointOptions& checkpoint = options.checkpoint;
  const int64_t pool = ThreadsOfPool(options, ranks_here);
  int64_t threads = pool + stage.lanes + ReadersOf(options) * options.trainer.packing.num_workers;
  threads += checkpoint.async_save && !checkpoint.save.empty() ? 1 : 0;
  // One writes, and one gives others what they lack at the start.
  threads += checkpoint.local_save.empty() ? 0 : 2;
  threads += stage.file_bytes > 0 ? kBlocksOfFile : 0;
  threads += stage.weight_file_bytes > 0 ? kBlocksOfFile : 0;
  // Those that update states in host memory, and the one that watches NCCL.
  if (options.device == DeviceType::kCuda)
    threads += (options.trainer.host_fraction > 0 ? pool : 0) + 1;
  return threads;
}

// Returns the most threads that a process has besides those of its ranks.
int64_t ThreadsOfProcess(const RunOptions& options, int64_t world_size) {
  int64_t threads = 1;  // the main thread, whose stack grows
  // A thread watches the ranks. Processes have the store, connections for data and for control, and
  // at the start one that takes these.
  if (world_size > 1) threads += options.ranks.processes ? 5 : 1;
  constexpr int64_t kConnections = 16;
  threads += options.loop.metrics_port >= 0 ? 1 + kConnections : 0;
  threads += options.loop.on_event.empty() ? 0 : 1;
  return threads;
}

// Returns the addresses of workspaces that kernels share out among the threads of a rank's pool.
int64_t SharedWorkspace(const RunOptions& options) {
  const TransformerOptions& layer = options.trainer.model.transformer;
  const int64_t wide =
      std::max(3 * layer.hidden_size, (layer.gated ? 2 : 1) * layer.ffn_hidden_size);
  int64_t floats = kMostColumnSums * wide;
  if (layer.float8.enabled) {
    // Products decode both matrices, and round their result.
    const PackerOptions& packing = options.trainer.packing;
    const int64_t tokens = packing.layout.micro_batch_size * packing.seq_length;
    floats = std::max(floats, 2 * tokens * wide + layer.hidden_size * wide);
  }
  return WithLargePages(floats * static_cast<int64_t>(sizeof(float)));
}

// Returns the addresses that a rank takes besides its threads' stacks and what is planned.
int64_t BesidePlan(const RunOptions& options, const RankPlan& stage, int ranks_here) {
  const bool on_gpus = options.device == DeviceType::kCuda;
  const PackerOptions& packing = options.trainer.packing;
  const int64_t samples =
      ReadersOf(options) * (packing.num_workers + 1) * packing.layout.micro_batch_size;
  int64_t bytes = kListsOfRank + SharedWorkspace(options) +
                  ThreadsOfPool(options, ranks_here) * (kWorkspaceOfThread + kLargeBlock) +
                  samples * packing.seq_length * kBytesOfToken;
  // The room in front of each block, of which activations have one for each micro-batch in flight.
  const auto add_room = [&](const std::map<std::string, int64_t>& memory) {
    for (const auto& [name, held] : memory) bytes += held < kLargeBlock ? 0 : kLargeBlock;
  };
  add_room(stage.host_memory);
  if (on_gpus) return bytes;
  add_room(stage.memory);
  for (const std::vector<SlotSizes>& chunks : {stage.sizes.slots, stage.sizes.deferred}) {
    for (const SlotSizes& slots : chunks)
      bytes += slots.bytes < kLargeBlock ? 0 : slots.count * kLargeBlock;
  }
  return bytes;
}

// Returns the addresses that are in use in a rank when it is asked, and not yet in the process that
// starts it.
int64_t InUseOfStartedRank(const RunOptions& options, int64_t world_size, std::optional<int> rank) {
  if (rank.has_value() || !options.ranks.processes || world_size == 1) return 0;
  return kListsOfMetRank + (world_size - 1) * kBuffersOfPeer;
}

absl::Status CheckAddresses(const ProcessLimits& limits, const RunOptions& options,
                            const RunPlan& plan, int ranks_here, std::optional<int> rank) {
  if (!limits.address_bytes.has_value()) return absl::OkStatus();
  const bool on_gpus = options.device == DeviceType::kCuda;
  const auto of_process = [&](const auto& of_rank) {
    return OfProcess(options, plan, rank, of_rank);
  };
  const int64_t planned = plan.data_bytes + of_process([&](const RankPlan& stage) {
                            return stage.host_bytes() + (on_gpus ? 0 : stage.total_bytes());
                          });
  const int64_t world_size = plan.ranks_per_stage * static_cast<int64_t>(plan.stages.size());
  // Those of a rank that has met the others run already: their stacks are in use.
  const int64_t serving = ThreadsOfProcess(options, world_size);
  const int64_t threads =
      serving - std::clamp<int64_t>(limits.threads - 1, 0, serving - 1) +
      of_process([&](const RankPlan& stage) { return ThreadsOfRank(options, stage, ranks_here); });
  const int64_t stacks = threads * limits.stack_bytes;
  // Lists of data are copied while they grow.
  const int64_t beside =
      kListsOfProcess + plan.data_bytes + InUseOfStartedRank(options, world_size, rank) +
      of_process([&](const RankPlan& stage) { return BesidePlan(options, stage, ranks_here); });
  const int64_t all = planned + stacks + beside;
  if (all <= *limits.address_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "a process of the run allocates up to ", FormatBytes(all), ": ", FormatBytes(planned),
      " for what is planned, ", FormatBytes(stacks), " for the stacks of ", threads, " threads, ",
      FormatBytes(beside),
      " for workspaces and the like; the limit of its addresses (ulimit -v) leaves ",
      FormatBytes(*limits.address_bytes),
      "; raise the limit (ulimit -v unlimited). --dry_run says what is planned; a smaller "
      "system.num_threads or data.num_workers takes fewer stacks"));
}

absl::Status CheckFile(const ProcessLimits& limits, const char* field, const char* file,
                       const std::string& directory, int64_t planned) {
  if (!limits.file_bytes.has_value() || planned <= *limits.file_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      field, ": a rank's ", file, " in '", directory, "' has ", FormatBytes(planned),
      " and no file of this process may have more than ", FormatBytes(*limits.file_bytes),
      " (ulimit -f); raise the limit (ulimit -f unlimited), or use more ranks"));
}

// Checks that a process may open `needed` files. `who` is the start of the message.
absl::Status CheckFilesOf(const ProcessLimits& limits, const std::string& who, int64_t needed,
                          int64_t ranks) {
  if (!limits.open_files.has_value() || needed <= *limits.open_files) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      who, " up to ", needed,
      " files and connections, and the limit of open files (ulimit -n) leaves ", *limits.open_files,
      "; raise the limit", ranks > 1 ? ", or start fewer ranks" : ""));
}

// Returns how many files a rank has open at once, whatever else its process has.
int64_t FilesOfRank(const RunOptions& options) {
  constexpr int64_t kFileAndRing = 2;
  return (options.checkpoint.save.empty() ? 0 : 1) +
         (options.checkpoint.local_save.empty() ? 0 : 1) +
         (options.trainer.state_directory.empty() ? 0 : kFileAndRing) +
         (options.trainer.weight_directory.empty() ? 0 : kFileAndRing);
}

// Checks the files of a process that has all ranks, or that starts those of this machine.
absl::Status CheckFilesOfAllRanks(const ProcessLimits& limits, const RunOptions& options,
                                  const RunPlan& plan, int ranks_here) {
  const int world_size =
      static_cast<int>(plan.ranks_per_stage * static_cast<int64_t>(plan.stages.size()));
  if (options.ranks.processes && world_size > 1) {
    MEGATRON_RETURN_IF_ERROR(CheckOpenFiles(limits, world_size));
    // It may have a connection of the store to each.
    const int64_t of_rank = kPipesOfRank + (options.ranks.in_process_recovery ? 1 : 0);
    return CheckFilesOf(
        limits,
        absl::StrCat("the process that starts ", FormatQuantity(ranks_here, "rank"), " opens"),
        of_rank * ranks_here + kOtherFiles, ranks_here);
  }
  return CheckFilesOf(limits,
                      world_size == 1 ? "the process opens"
                                      : absl::StrCat("the process of ",
                                                     FormatQuantity(world_size, "rank"), " opens"),
                      kOtherFiles + (world_size - 1) * FilesOfRank(options), world_size);
}

}  // namespace

ProcessLimits LimitsOfThisProcess() {
  ProcessLimits limits;
  limits.address_bytes = Left(LimitOf(RLIMIT_AS), AddressBytesInUse());
  limits.file_bytes = LimitOf(RLIMIT_FSIZE);
  limits.open_files = Left(LimitOf(RLIMIT_NOFILE), OpenFiles());
  limits.stack_bytes = StackBytes();
  limits.threads = std::max<int64_t>(1, CountNames("/proc/self/task"));
  return limits;
}

absl::Status CheckLimits(const ProcessLimits& limits, const RunOptions& options,
                         const RunPlan& plan, int ranks_here, std::optional<int> rank) {
  MEGATRON_RETURN_IF_ERROR(CheckAddresses(limits, options, plan, ranks_here, rank));
  // One of several was checked before it met the others.
  if (!rank.has_value()) {
    MEGATRON_RETURN_IF_ERROR(CheckFilesOfAllRanks(limits, options, plan, ranks_here));
  }
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
  return CheckFilesOf(limits,
                      absl::StrCat("each of ", FormatQuantity(world_size, "rank"),
                                   " has connections to every other and opens"),
                      kConnectionsPerRank * (world_size - 1) + kOtherFiles, world_size);
}

void PrepareForLimits() {
  std::signal(SIGXFSZ, SIG_IGN);
  if (LimitOf(RLIMIT_AS).has_value()) {
    // An arena of each thread would reserve 64 MiB, and large blocks that are given back would stay
    // in it. A steady step allocates nothing, so that no threads wait for the one that is left.
    mallopt(M_ARENA_MAX, 1);
    mallopt(M_MMAP_THRESHOLD, 1 << 20);
  }
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t wanted = std::min(limit.rlim_max, kMostOpenFiles);
  if (limit.rlim_cur >= wanted) return;
  limit.rlim_cur = wanted;
  // Where the system refuses, the old limit holds.
  static_cast<void>(setrlimit(RLIMIT_NOFILE, &limit));
}

}  // namespace megatron
