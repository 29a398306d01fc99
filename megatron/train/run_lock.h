// Keeps two processes from saving one run at once: a lock on a file in the directory of
// checkpoints, which the system gives back however the process ends.
#ifndef MEGATRON_TRAIN_RUN_LOCK_H_
#define MEGATRON_TRAIN_RUN_LOCK_H_

#include <string>

#include "absl/status/statusor.h"

namespace megatron {

class RunLock {
 public:
  // kFailedPrecondition where another process holds it.
  static absl::StatusOr<RunLock> Take(const std::string& directory);

  RunLock() = default;
  RunLock(RunLock&& other) noexcept : descriptor_(other.descriptor_) { other.descriptor_ = -1; }
  RunLock& operator=(RunLock&& other) noexcept;
  ~RunLock();

 private:
  explicit RunLock(int descriptor) : descriptor_(descriptor) {}

  int descriptor_ = -1;
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_RUN_LOCK_H_
