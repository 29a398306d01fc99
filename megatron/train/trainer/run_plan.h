// What a run will take before it takes anything: parameters and memory of each pipeline stage,
// found by running a step on the device that has no memory.
#ifndef MEGATRON_TRAIN_TRAINER_RUN_PLAN_H_
#define MEGATRON_TRAIN_TRAINER_RUN_PLAN_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "megatron/models/stage_memory.h"
#include "megatron/train/config/config.pb.h"
#include "megatron/train/trainer/run_options.h"

namespace megatron {

// One rank of each pipeline stage; the others of the stage are like it.
struct RankPlan {
  int64_t parameters = 0;  // that this rank holds
  int communicators = 0;   // with other ranks, if by NCCL
  StageMemorySizes sizes;
  std::map<std::string, int64_t> memory;       // bytes by kind
  std::map<std::string, int64_t> activations;  // bytes of one micro-batch by name, at the fullest

  int64_t total_bytes() const;
};

struct RunPlan {
  std::vector<RankPlan> stages;
  int64_t ranks_per_stage = 1;
  int64_t data_bytes = 0;  // of the process
  // Resident before anything is allocated (this process, now), and the kernels' workspaces.
  int64_t program_bytes = 0;

  // Of all ranks together.
  int64_t rank_bytes() const;
  // Of a machine that runs `ranks` of them, in `processes` processes.
  int64_t machine_bytes(int ranks, int processes) const;
};

absl::StatusOr<RunPlan> PlanRun(const RunOptions& options);

// What --dry_run prints.
std::string FormatRunPlan(const config::PretrainConfig& config, const RunOptions& options,
                          const RunPlan& plan);

// "1.50 GiB"
std::string FormatBytes(int64_t bytes);
// 124,439,808
std::string FormatCount(int64_t count);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_TRAINER_RUN_PLAN_H_
