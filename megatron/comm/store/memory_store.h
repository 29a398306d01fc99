// A Store for ranks that are threads of one process.
#ifndef MEGATRON_COMM_STORE_MEMORY_STORE_H_
#define MEGATRON_COMM_STORE_MEMORY_STORE_H_

#include <map>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "megatron/comm/store/store.h"

namespace megatron {

class MemoryStore : public Store {
 public:
  absl::Status Set(absl::string_view key, absl::string_view value) override;
  // All who use this store end with it.
  absl::Status Hold(absl::string_view key, absl::string_view value) override {
    return Set(key, value);
  }
  absl::StatusOr<std::string> Get(absl::string_view key, absl::Duration timeout) override;
  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t delta) override;
  absl::Status Wait(absl::Span<const std::string> keys, absl::Duration timeout) override;

  // Those of `keys` that are not there now.
  std::vector<std::string> Missing(absl::Span<const std::string> keys) const;

 private:
  std::vector<std::string> MissingLocked(absl::Span<const std::string> keys) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  std::map<std::string, std::string, std::less<>> values_ ABSL_GUARDED_BY(mutex_);
};

// Returns kInvalidArgument if one is longer than a store takes.
absl::Status CheckStoreSizes(absl::string_view key, absl::string_view value);
// Returns the error of a Wait whose time is over.
absl::Status KeysAreMissing(absl::Duration timeout, const std::vector<std::string>& missing);

}  // namespace megatron

#endif  // MEGATRON_COMM_STORE_MEMORY_STORE_H_
