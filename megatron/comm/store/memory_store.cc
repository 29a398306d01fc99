#include "megatron/comm/store/memory_store.h"

#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace megatron {

absl::Status CheckStoreSizes(absl::string_view key, absl::string_view value) {
  if (key.size() <= kMaxStoreKey && value.size() <= kMaxStoreValue) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("a key of ", key.size(), " bytes (at most ",
                                                 kMaxStoreKey, ") and a value of ", value.size(),
                                                 " bytes (at most ", kMaxStoreValue, ")"));
}

absl::Status MemoryStore::Set(absl::string_view key, absl::string_view value) {
  if (absl::Status status = CheckStoreSizes(key, value); !status.ok()) return status;
  absl::MutexLock lock(&mutex_);
  values_[std::string(key)] = std::string(value);
  return absl::OkStatus();
}

absl::StatusOr<std::string> MemoryStore::Get(absl::string_view key, absl::Duration timeout) {
  const std::string name(key);
  if (absl::Status status = Wait({name}, timeout); !status.ok()) return status;
  absl::MutexLock lock(&mutex_);
  return values_.find(name)->second;
}

absl::StatusOr<int64_t> MemoryStore::Add(absl::string_view key, int64_t delta) {
  if (absl::Status status = CheckStoreSizes(key, ""); !status.ok()) return status;
  absl::MutexLock lock(&mutex_);
  int64_t count = 0;
  const auto found = values_.find(key);
  if (found != values_.end() && !absl::SimpleAtoi(found->second, &count)) {
    return absl::FailedPreconditionError(absl::StrCat("key '", key, "' does not hold a number"));
  }
  if (__builtin_add_overflow(count, delta, &count)) {
    return absl::OutOfRangeError(absl::StrCat("counter '", key, "' overflows"));
  }
  values_[std::string(key)] = absl::StrCat(count);
  return count;
}

absl::Status MemoryStore::Wait(absl::Span<const std::string> keys, absl::Duration timeout) {
  for (const std::string& key : keys) {
    if (absl::Status status = CheckStoreSizes(key, ""); !status.ok()) return status;
  }
  const auto all_there = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return MissingLocked(keys).empty();
  };
  absl::MutexLock lock(&mutex_);
  if (mutex_.AwaitWithTimeout(absl::Condition(&all_there), timeout)) return absl::OkStatus();
  return KeysAreMissing(timeout, MissingLocked(keys));
}

std::vector<std::string> MemoryStore::Missing(absl::Span<const std::string> keys) const {
  absl::MutexLock lock(&mutex_);
  return MissingLocked(keys);
}

std::vector<std::string> MemoryStore::MissingLocked(absl::Span<const std::string> keys) const {
  std::vector<std::string> missing;
  for (const std::string& key : keys) {
    if (values_.count(key) == 0) missing.push_back(key);
  }
  return missing;
}

absl::Status KeysAreMissing(absl::Duration timeout, const std::vector<std::string>& missing) {
  return absl::DeadlineExceededError(absl::StrCat(
      "after ", absl::FormatDuration(timeout), " nobody has set ", absl::StrJoin(missing, ", ")));
}

}  // namespace megatron
