// Limits that the system puts on a process (ulimit), whatever the machine has. A run that needs
// more than they leave is refused before its first step.
#ifndef MEGATRON_TRAIN_PREFLIGHT_CHECK_LIMITS_H_
#define MEGATRON_TRAIN_PREFLIGHT_CHECK_LIMITS_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "megatron/train/trainer/run_options.h"
#include "megatron/train/trainer/run_plan.h"

namespace megatron {

// What limits leave to a process; nothing where there is no limit.
struct ProcessLimits {
  std::optional<int64_t> address_bytes;  // addresses, ulimit -v, besides those in use
  std::optional<int64_t> file_bytes;     // the length of its longest file, ulimit -f
  std::optional<int64_t> open_files;     // ulimit -n, besides those that are open
  int64_t stack_bytes = 0;               // addresses that each new thread takes for its stack
  int64_t threads = 1;  // those that run; the stacks of all but the first are in use
};

ProcessLimits LimitsOfThisProcess();

// Checks that limits leave enough for the addresses that this process takes, for the files that it
// opens and for the longest one that it would write. `rank` is its rank, if it is one of several,
// whose open files are left to CheckOpenFiles; else the limits are those of a process with all
// ranks or, where each rank is a process, of each of them and of the one that starts them. This
// machine runs `ranks_here` ranks, which share the threads out. Addresses are those of what is
// planned, of the stacks of all threads that don't run yet, of kernels' workspaces and of the
// program's own lists; what CUDA and its libraries take, and files that are mapped, don't count.
absl::Status CheckLimits(const ProcessLimits& limits, const RunOptions& options,
                         const RunPlan& plan, int ranks_here, std::optional<int> rank);

// Checks that one of `world_size` processes, which has connections to every other, may open these
// and the other files of a run.
absl::Status CheckOpenFiles(const ProcessLimits& limits, int world_size);

// Makes this process ready for its limits: a file at the limit of its length is an error of the
// write (EFBIG) and no longer a signal that ends the process, and as many files may be open as the
// hard limit allows, up to 65,536. Where addresses are limited, threads reserve none for memory
// that they may ask for later. To be called before threads are started.
void PrepareForLimits();

}  // namespace megatron

#endif  // MEGATRON_TRAIN_PREFLIGHT_CHECK_LIMITS_H_
