// One rank of a pretraining run: builds its groups, memory and trainer, restores or initializes the
// weights, trains, and writes a text at the end.
#ifndef MEGATRON_TRAIN_RANK_PRETRAIN_RANK_H_
#define MEGATRON_TRAIN_RANK_PRETRAIN_RANK_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "megatron/base/thread_pool.h"
#include "megatron/comm/nccl/nccl_communicator.h"
#include "megatron/comm/process_group.h"
#include "megatron/comm/recorded_communicator.h"
#include "megatron/comm/watch/rank_progress.h"
#include "megatron/tensor/cuda_device.h"
#include "megatron/tensor/memory.h"
#include "megatron/tensor/stream.h"
#include "megatron/tensor/trace/trace.h"
#include "megatron/train/failure/exit_code.h"
#include "megatron/train/failure/failure.h"
#include "megatron/train/failure/reporting_file_system.h"
#include "megatron/train/metrics/rank_console.h"
#include "megatron/train/metrics/run_totals.h"
#include "megatron/train/metrics/step_metrics.h"
#include "megatron/train/rank/kept_rank.h"
#include "megatron/train/rank/pretrain_run.h"
#include "megatron/train/trainer/trainer.h"

namespace megatron {

class PretrainRank {
 public:
  // The rank `world.rank()`. All must outlive this.
  PretrainRank(const PretrainRun& run, const ProcessGroup& world, FirstFailure* failure);
  ~PretrainRank();

  // Trains and leaves with the code, on all ranks alike except after a failure; then `failure`
  // holds the error, and the caller ends the other ranks.
  ExitCode Run();

  // Whether it has had a state to train with.
  bool has_state() const { return has_state_; }
  // Whether it has left so that other processes become ranks of the run.
  bool makes_room() const { return makes_room_; }
  // Copies what ranks go on from to `kept`, after Run(): also what they began with, unless all have
  // come so far that they had a state. `kept` stays as it is where this rank has not.
  void Keep(KeptRank* kept);

  // This rank's current work, for its monitor.
  const RankProgress& progress() const { return progress_; }

  // Returns whether this rank prints for all. It is the last one, as in Megatron: it knows the loss
  // first.
  bool is_reporting_rank() const { return world_.rank() == world_.size() - 1; }

 private:
  const RunOptions& options() const { return run_.options(); }
  bool profiled() const { return options().profile.Covers(world_.rank()); }
  // Connects all ranks for what is on their devices.
  absl::StatusOr<std::shared_ptr<Communicator>> MakeDeviceCommunicator();
  absl::Status BuildTrainer();
  // Prints what compression leaves as it is.
  void DescribeCompression();
  absl::Status RestoreOrInitialize();
  // Takes over the state that ranks have in memory.
  absl::Status TakeOver();
  absl::Status Prepare();
  ExitCode Train();
  // Prints the last lines of a run whose ranks are all here.
  void PrintClosing(ExitCode code);

  const PretrainRun& run_;
  ProcessGroup world_, saving_, local_saving_;
  FirstFailure* failure_;
  RankProgress progress_;
  RankConsole console_;
  ReportingFileSystem fs_;
  MemoryLedger ledger_;
  Trace trace_;
  ThreadPool pool_;
  std::unique_ptr<CudaStream> cuda_;  // null on the CPU
  Stream stream_;
  std::unique_ptr<NcclWorld> nccl_;  // null where ranks do not talk by NCCL
  CallRecord calls_;                 // of its groups, where steps are computed again
  std::unique_ptr<Trainer> trainer_;
  RunTotals totals_;  // set when training has ended
  bool has_state_ = false, all_have_state_ = false;
  bool makes_room_ = false;
  std::optional<int64_t> evaluated_iteration_;  // TrainingLoop::Rank's, and then the loop's
  std::optional<StepMetrics> last_step_;
  std::optional<std::string> unwritten_metrics_;  // unset before the loop has run
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_RANK_PRETRAIN_RANK_H_
