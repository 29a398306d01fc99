// One rank of pretrain_gpt, from its groups and memory over the weights it starts from to the text
// at the end.
#ifndef MEGATRON_TRAIN_PRETRAIN_RANK_H_
#define MEGATRON_TRAIN_PRETRAIN_RANK_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "megatron/base/file_system.h"
#include "megatron/base/thread_pool.h"
#include "megatron/checkpoint/checkpoint_reader.h"
#include "megatron/comm/nccl/nccl_communicator.h"
#include "megatron/comm/process_group.h"
#include "megatron/comm/watch/rank_progress.h"
#include "megatron/data/tokenizer/tokenizer.h"
#include "megatron/tensor/cuda_device.h"
#include "megatron/tensor/memory.h"
#include "megatron/tensor/stream.h"
#include "megatron/tensor/trace/trace.h"
#include "megatron/train/batches/training_data.h"
#include "megatron/train/device_links.h"
#include "megatron/train/failure/exit_code.h"
#include "megatron/train/failure/failure.h"
#include "megatron/train/failure/reporting_file_system.h"
#include "megatron/train/metrics/rank_console.h"
#include "megatron/train/metrics/step_meter.h"
#include "megatron/train/trainer/run_options.h"
#include "megatron/train/trainer/run_plan.h"
#include "megatron/train/trainer/trainer.h"
#include "megatron/train/trainer/training_checkpoint.h"

namespace megatron {

// A piece of work that a rank is about to begin.
struct PieceOfWork {
  const ProcessGroup& world;  // of all ranks; world.rank() is the one
  int64_t iteration;          // from 1; 0 before the first
  Phase phase;
};

// Hears of each on the thread that does it: for tests, which put faults there.
using PieceListener = std::function<void(const PieceOfWork&)>;

// What the ranks of a process share; none of it changes while they run.
struct PretrainRun {
  FileSystem* fs = nullptr;
  RunOptions options;
  RunPlan plan;
  std::unique_ptr<Tokenizer> tokenizer;
  TrainingData data;
  RunDescription description;
  SpeedBasis speed;
  int threads_per_rank = 1;
  // Of this process on its machine, where it is one rank; unset: ranks are threads.
  std::optional<int> local_rank;
  DeviceLinks links;  // on GPUs
  DeviceCalls* device_calls = nullptr;
  absl::Time program_start;
  // What to start from; null: from the beginning.
  std::unique_ptr<CheckpointReader> checkpoint;
  Restore restore = Restore::kEverything;
  PieceListener on_piece;  // null: nobody listens
};

class PretrainRank {
 public:
  // Rank `world.rank()`. All must outlive this.
  PretrainRank(const PretrainRun& run, const ProcessGroup& world, FirstFailure* failure);
  ~PretrainRank();

  // Trains and leaves with the code, on all ranks alike but after a failure; then `failure` holds
  // it, and the caller ends the other ranks.
  ExitCode Run();

  // What this rank is doing, for its monitor.
  const RankProgress& progress() const { return progress_; }

  // Whether this rank prints for all. It is the last one, as in Megatron: it knows the loss first.
  bool is_reporting_rank() const { return world_.rank() == world_.size() - 1; }

 private:
  bool profiled() const { return run_.options.profile.Covers(world_.rank()); }
  absl::StatusOr<std::shared_ptr<Communicator>> LinkDevices();
  absl::Status Build();
  absl::Status Start(ExitCode* code);
  ExitCode Train();
  void Generate();
  void FillMasks();
  void Restore();

  const PretrainRun& run_;
  ProcessGroup world_, saving_;
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
  std::unique_ptr<Trainer> trainer_;
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_PRETRAIN_RANK_H_
