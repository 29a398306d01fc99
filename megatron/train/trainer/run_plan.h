// Plans a run before it allocates anything: finds the parameters and the memory of each pipeline
// stage by running a step on the meta device, which has no memory.
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
#include "megatron/train/trainer/trained_layers.h"

namespace megatron {

// The number of steps in a day, if each takes a second.
inline constexpr int64_t kSecondsOfADay = 86400;

// One rank of each pipeline stage; the others of the stage are like it.
struct RankPlan {
  int64_t parameters = 0;  // parameters that this rank holds
  int64_t frozen = 0;      // those of them that optimizer.freeze keeps as they are
  int communicators = 0;   // communicators with other ranks, if by NCCL
  int lanes = 0;           // threads that communicate beside computing, on the CPU
  std::vector<int> ranks;  // all ranks of this stage, ascending, which are alike
  StageMemorySizes sizes;
  std::map<std::string, int64_t> memory;       // bytes on the device by kind
  std::map<std::string, int64_t> host_memory;  // bytes of the host by kind, besides the program's
  std::map<std::string, int64_t> activations;  // peak bytes of one micro-batch by name
  // Bytes of the rank's file of optimizer states, which each step reads and writes once.
  int64_t file_bytes = 0;
  // Bytes of its file of weights, which each pass of a micro-batch reads and each step writes.
  int64_t weight_file_bytes = 0;
  // Bytes of the rank's shard of a checkpoint; 0 where the run saves none. The first rank of the
  // stage has the largest.
  int64_t shard_bytes = 0;
  // Those of a local checkpoint; 0 without checkpoint.local_save.
  int64_t local_bytes = 0;
  // Bytes in a checkpoint of the whole parameters of which the rank has blocks, with their masters
  // and states. Copies of other stages' parameters do not count.
  int64_t saved_bytes = 0;
  // The most bytes that a checkpoint has of the stage besides: headers of shards, what manifests
  // have of all pieces, and states that belong to no parameter.
  int64_t saved_beside_bytes = 0;

  int64_t total_bytes() const;  // bytes on the device
  int64_t host_bytes() const;
  // Returns `memory` and `host_memory` under the names that the ledger of a run has.
  std::map<std::string, int64_t> all_memory() const;
};

struct RunPlan {
  std::vector<RankPlan> stages;
  int64_t ranks_per_stage = 1;
  int64_t frozen_parameters = 0;  // of the whole model
  TrainedLayers trained_layers;
  int64_t data_bytes = 0;  // bytes of the process for its data
  // Bytes resident before anything is allocated (in this process, now), and the kernels'
  // workspaces.
  int64_t program_bytes = 0;

  // Returns the bytes of all ranks together, on their devices.
  int64_t rank_bytes() const;
  // Returns the bytes of host memory that `ranks` ranks on GPUs take.
  int64_t host_bytes(int ranks) const;
  // Returns the bytes of the files of optimizer states, and of weights, of `ranks` ranks.
  int64_t file_bytes(int ranks) const { return OfRanks(&RankPlan::file_bytes, ranks); }
  int64_t weight_file_bytes(int ranks) const {
    return OfRanks(&RankPlan::weight_file_bytes, ranks);
  }
  // Returns the bytes of all parameters, masters and states in a checkpoint; 0 where the run saves
  // none. Experts that no first rank of a stage has are not counted.
  int64_t checkpoint_bytes() const;
  // Returns the most bytes of a checkpoint's files.
  int64_t checkpoint_room() const;
  // Returns the bytes of a local checkpoint, those of all ranks together, without copies.
  int64_t local_bytes() const;
  // Returns the bytes of a machine that runs `ranks` of them, in `processes` processes.
  int64_t machine_bytes(int ranks, int processes) const;

  // Returns these bytes of `ranks` ranks.
  int64_t OfRanks(int64_t RankPlan::*bytes_of, int ranks) const;
};

absl::StatusOr<RunPlan> PlanRun(const RunOptions& options);

// Plans one pipeline stage alone.
absl::StatusOr<RankPlan> PlanStageOfRun(const RunOptions& options, int stage);

// Returns "rank 3", "ranks 4-7" or, where they are not neighbours, "ranks 0-1, 4-5, ... 12-13".
std::string DescribeRanks(const std::vector<int>& ascending);

// Returns the part of --dry_run=full behind the configuration.
std::string FormatRunPlan(const config::PretrainConfig& config, const RunOptions& options,
                          const RunPlan& plan);

// Returns a text like "124,439,808".
std::string FormatCount(int64_t count);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_TRAINER_RUN_PLAN_H_
