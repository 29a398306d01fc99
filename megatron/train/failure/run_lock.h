// Keeps two runs from saving to one directory at once: a lock on a file there, which the system
// gives back however a process ends.
//
// A run of several processes takes it in one of them, which then shares it with the others, so that
// the next run waits for the last process of this one.
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
  // kFailedPrecondition where another run holds it and does not let go within `patience`: a run
  // that was killed takes a moment to be gone.
  static absl::StatusOr<RunLock> Take(const std::string& directory, absl::Duration patience);
  // From now on others may join. The other processes of the run do after that.
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
  // `operation` is one of flock's.
  absl::Status Lock(int operation) const;

  std::string directory_;
  int descriptor_ = -1;
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_FAILURE_RUN_LOCK_H_
