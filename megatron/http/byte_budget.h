// Limits what many threads hold at once.
//
//   ByteBudget budget(16 << 20);
//   ByteBudget::Share share = budget.Take(bytes);
//   if (share == nullptr) ...  // others hold too much now
#ifndef MEGATRON_HTTP_BYTE_BUDGET_H_
#define MEGATRON_HTTP_BYTE_BUDGET_H_

#include <cstddef>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace megatron::http {

// Thread safe. It outlives its shares.
class ByteBudget {
 public:
  // Bytes that are held as long as this or a copy of it is there; null: none.
  using Share = std::shared_ptr<const void>;

  explicit ByteBudget(size_t bytes) : bytes_(bytes) {}

  // Returns null where fewer bytes are free. Never waits.
  Share Take(size_t bytes);

  size_t bytes() const { return bytes_; }

 private:
  const size_t bytes_;
  absl::Mutex mutex_;
  size_t held_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace megatron::http

#endif  // MEGATRON_HTTP_BYTE_BUDGET_H_
