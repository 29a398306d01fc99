// Preparing a run: from a configuration that was read to the inputs of its ranks, before any of
// them starts.
//
//   RunPreparation preparation(command, process, start, shared);
//   MEGATRON_ASSIGN_OR_RETURN(AcceptedRun accepted, preparation.Plan(std::move(read), layout));
//   MEGATRON_ASSIGN_OR_RETURN(const PretrainRun run, preparation.Prepare(&accepted));
#ifndef MEGATRON_TRAIN_PREPARE_RUN_H_
#define MEGATRON_TRAIN_PREPARE_RUN_H_

#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "megatron/train/configs/config_loader.h"
#include "megatron/train/failure/run_lock.h"
#include "megatron/train/metrics/step_comparison.pb.h"
#include "megatron/train/planning/auto_layout.h"
#include "megatron/train/planning/planning_facts.h"
#include "megatron/train/preflight/check_memory.h"
#include "megatron/train/preflight/plan_pretraining.h"
#include "megatron/train/pretrain_command.h"
#include "megatron/train/rank/device_calls.h"
#include "megatron/train/rank/pretrain_run.h"
#include "megatron/train/rank_recovery.h"
#include "megatron/train/run_events.h"
#include "megatron/train/run_process.h"

namespace megatron {

// What a run will be: its configuration is accepted, and nothing is opened yet.
struct AcceptedRun {
  LoadedConfig loaded;
  PlannedPretraining run;
  std::optional<SavedLayout> layout;   // with train.auto_layout
  std::optional<PlanningFacts> facts;  // on the first process of a run that is to be predicted

  const RunOptions& options() const { return run.options; }
};

// All processes of a run go through the same calls, and what goes wrong in one is the error of all,
// unless it leaves alone (RunProcess).
// It holds the lock on the directory of checkpoints from the first Prepare on, also while the run
// goes on with other ranks.
class RunPreparation {
 public:
  // Parts of the process that the run gets to know; they outlive it.
  struct Shared {
    RankRecovery* recovery;
    RunEvents* events;
    DeviceCalls* device_calls;
  };

  // `command` and `process` outlive this. `run_start` is SteadyNow() at the start of the run.
  RunPreparation(const PretrainCommand& command, const RunProcess& process, absl::Time run_start,
                 const Shared& shared)
      : command_(command), process_(process), run_start_(run_start), shared_(shared) {}

  // Checks the configuration and, unless ranks go on in memory, whether memory, disks and limits
  // suffice. `layout` is the one that the configuration was read with, if it was chosen.
  absl::StatusOr<AcceptedRun> Plan(absl::StatusOr<LoadedConfig> read,
                                   const std::optional<SavedLayout>& layout) const;
  // Opens devices, data, directories and the state that the run starts from. The run takes over
  // accepted->run.
  absl::StatusOr<PretrainRun> Prepare(AcceptedRun* accepted);

 private:
  // Checks that the process's limits suffice. Collective over the processes.
  absl::Status CheckLimitsHere(const RunOptions& options, const RunPlan& plan) const;
  // The same for memory and disks, too.
  absl::Status CheckResources(const RunOptions& options, const RunPlan& plan) const;
  // Returns the GPUs whose memory this process compares with the plan, with the ranks that have
  // them: one of several its own, else all of this machine; none on the CPU. Collective over the
  // processes.
  absl::StatusOr<std::vector<GpuShare>> GpusToCheck(const RunOptions& options) const;
  // Returns what needs nothing opened.
  PretrainRun Begin(PlannedPretraining planned) const;
  // Makes the directories that this process writes to. The first process locks that of checkpoints,
  // unless the run has it already.
  absl::StatusOr<RunLock> OpenDirectories(const PretrainRun& run, bool is_locked) const;
  absl::Status TakeSaveLock(const PretrainRun& run);
  // TrainingRun::keep_save_lock of a run with these options.
  absl::StatusOr<bool> KeepSaveLock(const CheckpointOptions& checkpoint, bool is_first);
  // Finds the state that the run starts from.
  absl::Status FindStart(const LoadedConfig& loaded, PretrainRun* run) const;
  // Returns what is expected of a step, on all processes alike; without parts if there is nothing
  // to predict it from.
  absl::StatusOr<StepComparison> Predict(const AcceptedRun& accepted,
                                         int64_t padded_vocab_size) const;

  const PretrainCommand& command_;
  const RunProcess& process_;
  const absl::Time run_start_;
  const Shared shared_;
  std::mutex save_lock_mutex_;  // the rank threads of a process share the lock
  std::optional<RunLock> save_lock_;
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_PREPARE_RUN_H_
