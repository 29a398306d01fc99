// Saves a run's local checkpoints (checkpoint/local), which are taken more often than those in
// checkpoint.save.
#ifndef MEGATRON_TRAIN_TRAINER_LOCAL_SAVER_H_
#define MEGATRON_TRAIN_TRAINER_LOCAL_SAVER_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "megatron/base/file_system.h"
#include "megatron/checkpoint/async_checkpoint_writer.h"
#include "megatron/checkpoint/checkpoint_state.h"
#include "megatron/checkpoint/local/local_place.h"
#include "megatron/comm/process_group.h"
#include "megatron/train/trainer/consensus.h"
#include "megatron/train/trainer/run_options.h"

namespace megatron {

// All ranks make the same calls. Without checkpoint.local_save nothing is ever due or done.
class LocalSaver {
 public:
  // `ranks`: all ranks, for the thread that saves.
  LocalSaver(const CheckpointOptions& options, const LocalPlace& place, const ProcessGroup& ranks,
             FileSystem& fs);

  bool IsDue(int64_t iteration) const;
  // Begins a save. The one before must have been finished.
  void Start(CheckpointState state);
  // As AsyncCheckpointWriter's.
  void WaitUntilRead();
  bool HasRead();
  // Returns when the save in progress has ended. The error says which one it was.
  absl::Status Finish();
  // Removes what this machine has, which the run no longer needs.
  absl::Status Remove();

 private:
  const CheckpointOptions& options_;
  const LocalPlace& place_;
  const ProcessGroup ranks_;
  FileSystem& fs_;
  Consensus consensus_;
  int64_t iteration_ = 0;                          // the save that was started last
  std::unique_ptr<AsyncCheckpointWriter> writer_;  // null without checkpoint.local_save
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_TRAINER_LOCAL_SAVER_H_
