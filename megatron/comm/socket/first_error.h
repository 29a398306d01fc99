// The first error of a world: set once, and read without waiting for anybody.
#ifndef MEGATRON_COMM_SOCKET_FIRST_ERROR_H_
#define MEGATRON_COMM_SOCKET_FIRST_ERROR_H_

#include <atomic>

#include "absl/status/status.h"

namespace megatron {

// Threads: any.
class FirstError {
 public:
  FirstError() = default;
  ~FirstError() { delete error_.load(); }
  FirstError(const FirstError&) = delete;
  FirstError& operator=(const FirstError&) = delete;

  bool ok() const { return error_.load(std::memory_order_acquire) == nullptr; }
  absl::Status Get() const {
    const absl::Status* const error = error_.load(std::memory_order_acquire);
    return error == nullptr ? absl::OkStatus() : *error;
  }
  // Does nothing where there is one already.
  void Set(const absl::Status& error) {
    const auto* const mine = new absl::Status(error);
    const absl::Status* none = nullptr;
    if (!error_.compare_exchange_strong(none, mine)) delete mine;
  }

 private:
  std::atomic<const absl::Status*> error_{nullptr};
};

}  // namespace megatron

#endif  // MEGATRON_COMM_SOCKET_FIRST_ERROR_H_
