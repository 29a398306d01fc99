// Failure: why a run ends early, as the message that its process prints and its exit code.
#ifndef MEGATRON_TRAIN_FAILURE_FAILURE_H_
#define MEGATRON_TRAIN_FAILURE_FAILURE_H_

#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "megatron/train/failure/exit_code.h"

namespace megatron {

struct Failure {
  ExitCode code = kExitDone;
  std::string message;
};

// The first failure among several ranks; the failures of the others follow from it. Thread-safe.
class FirstFailure {
 public:
  // Keeps the failure if there was none before. Returns its code, with which the caller ends.
  ExitCode Set(ExitCode code, std::string message) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!failure_.has_value()) failure_ = Failure{code, std::move(message)};
    return code;
  }
  std::optional<Failure> Get() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return failure_;
  }

 private:
  mutable std::mutex mutex_;
  std::optional<Failure> failure_;
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_FAILURE_FAILURE_H_
