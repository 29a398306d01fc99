// Saves checkpoints on a thread of its own, while training goes on.
//
//   writer.Start(State());            // the parameters and moments are read from here on
//   ... next forward and backward ...
//   writer.WaitUntilRead();           // now they may change
//   optimizer.Step();
//   ...
//   MEGATRON_RETURN_IF_ERROR(writer.Wait());   // the checkpoint is committed
//
// All calls come from one thread.
#ifndef MEGATRON_CHECKPOINT_ASYNC_CHECKPOINT_WRITER_H_
#define MEGATRON_CHECKPOINT_ASYNC_CHECKPOINT_WRITER_H_

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "absl/status/status.h"
#include "megatron/base/file_system.h"
#include "megatron/checkpoint/checkpoint_state.h"
#include "megatron/checkpoint/save_checkpoint.h"

namespace megatron {

class AsyncCheckpointWriter {
 public:
  // The function that saves, on the writer's thread; the second argument as that of SaveCheckpoint.
  using SaveFunction =
      std::function<absl::Status(const CheckpointState&, const std::function<void()>&)>;
  explicit AsyncCheckpointWriter(SaveFunction save);
  // Saves by SaveCheckpoint. `fs` must outlive the writer.
  AsyncCheckpointWriter(FileSystem& fs, SaveOptions options);
  AsyncCheckpointWriter(const AsyncCheckpointWriter&) = delete;
  AsyncCheckpointWriter& operator=(const AsyncCheckpointWriter&) = delete;
  // Waits for a save in progress; its status is lost.
  ~AsyncCheckpointWriter();

  // Begins a save. The one before must have been waited for. What `state` describes is copied, what
  // its tensors point at is not.
  void Start(CheckpointState state);

  // Returns when the tensors of the save in progress have been read, or it has failed. At once
  // where there is none.
  void WaitUntilRead();
  // Whether it would return at once.
  bool HasRead();

  // Returns when the save in progress has ended, with its status; OK where there is none.
  absl::Status Wait();

  bool in_progress() const { return thread_.joinable(); }

 private:
  void Run();
  void SetRead();

  const SaveFunction save_;
  CheckpointState state_;  // the thread's, from Start to Wait
  absl::Status status_;    // likewise
  std::thread thread_;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool read_ = true;  // guarded by mutex_
};

}  // namespace megatron

#endif  // MEGATRON_CHECKPOINT_ASYNC_CHECKPOINT_WRITER_H_
