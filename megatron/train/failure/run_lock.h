// RunLock keeps two runs from saving to one directory at once. It is a lock on a file there, which
// the system releases however a process ends.
//
// One process of a run takes the lock and then shares it with the others, so that the next run waits
// for the last process of this one.
#ifndef MEGATRON_TRAIN_FAILURE_RUN_LOCK_H_
#define MEGATRON_TRAIN_FAILURE_RUN_LOCK_H_

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace megatron {

class RunLock {
 public:
  // Returns kFailedPrecondition if another run holds the lock for longer than `patience`. A run that
  // was killed takes a moment to release it.
  static absl::StatusOr<RunLock> Take(const std::string& directory, absl::Duration patience);
  // Shares the lock: from now on the other processes of the run may Join.
  absl::Status Share();
  static absl::StatusOr<RunLock> Join(const std::string& directory);

  RunLock() = default;
  RunLock(RunLock&& other) noexcept { *this = std::move(other); }
  RunLock& operator=(RunLock&& other) noexcept;
  ~RunLock();

 private:
  RunLock(std::string directory, int descriptor)
      : directory_(std::move(directory)), descriptor_(descriptor) {}

  static absl::StatusOr<RunLock> Open(const std::string& directory);
  // `operation` is an operation of flock(2).
  absl::Status Lock(int operation) const;

  std::string directory_;
  int descriptor_ = -1;
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_FAILURE_RUN_LOCK_H_
