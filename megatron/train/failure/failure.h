// Why a run ends before its time: what its process says, and its exit code.
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

// Of several ranks the failure that came first, from which those of the others follow. Any thread
// may call.
class FirstFailure {
 public:
  // Kept if there was none before. Returns the code, for the caller to leave with.
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
