// FirstFailure: the error that ends a run early, as the message that its process prints and its
// exit code (exit_status.h).
#ifndef MEGATRON_TRAIN_FAILURE_FAILURE_H_
#define MEGATRON_TRAIN_FAILURE_FAILURE_H_

#include <mutex>

#include "absl/status/status.h"
#include "megatron/train/failure/exit_code.h"
#include "megatron/train/failure/exit_status.h"

namespace megatron {

// The first failure among several ranks; the failures of the others follow from it. Thread-safe.
class FirstFailure {
 public:
  // Keeps the error if there was none before. Returns the exit code of `error`, with which the
  // caller ends.
  ExitCode Set(const absl::Status& error) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (failure_.ok()) failure_ = error;
    return ExitCodeOf(error);
  }
  // Forgets the failure: ranks go on without those that were lost.
  void Clear() {
    const std::lock_guard<std::mutex> lock(mutex_);
    failure_ = absl::OkStatus();
  }
  // OK: no rank has failed.
  absl::Status Get() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return failure_;
  }

 private:
  mutable std::mutex mutex_;
  absl::Status failure_;
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_FAILURE_FAILURE_H_
