// What --dry_run prints: what would run, and what it would take of this machine.
#ifndef MEGATRON_TRAIN_PREFLIGHT_PLAN_REPORT_H_
#define MEGATRON_TRAIN_PREFLIGHT_PLAN_REPORT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "megatron/train/configs/config_loader.h"
#include "megatron/train/preflight/plan_pretraining.h"

namespace megatron {

// The memory with which a plan is compared.
struct MachineMemory {
  std::optional<int64_t> host_bytes;  // available bytes, if the system tells
  std::vector<int64_t> gpu_bytes;     // free bytes of each GPU that the plan's ranks would have
  // Free bytes where optimizer states would lie in files, if there are any and the system tells.
  std::optional<int64_t> disk_bytes;
  // The reason for which the files of the ranks planned here find too little room; empty: there is
  // none.
  std::string disk_refusal;
  // The reason for which limits of the process (check_limits.h) leave these ranks too little;
  // empty: there is none.
  std::string limit_refusal;
  // The reason for which checkpoints find too little room, with which a run goes on; empty: there
  // is none.
  std::string checkpoint_shortage;
  // The reason for which a run would be refused here, on its CPU or its GPUs; empty: there is none.
  std::string refusal;
};

// Returns the memory alone, without refusals and disks, for a plan of so many ranks.
MachineMemory MemoryOfThisMachine(int ranks);

// Returns how many of the run's ranks are compared with this machine, which has `devices` GPUs. On
// the CPU, and as threads of one process, it runs all of them; of processes on GPUs it runs one on
// each GPU. The number is 0 where a plan is for GPUs and this machine has none.
int RanksPlannedHere(const RunOptions& options, int devices);

// Returns one screen: at most 40 lines of at most 80 columns, but for long words.
std::string FormatPlanScreen(const LoadedConfig& loaded, const PlannedPretraining& planned,
                             const MachineMemory& machine);

// Returns the effective configuration with the place of each value, and every kind of memory of
// every pipeline stage.
std::string FormatFullPlan(const LoadedConfig& loaded, const PlannedPretraining& planned);

// Returns one JSON object; docs/operations.md describes it.
std::string FormatPlanJson(const LoadedConfig& loaded, const PlannedPretraining& planned,
                           const MachineMemory& machine);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_PREFLIGHT_PLAN_REPORT_H_
