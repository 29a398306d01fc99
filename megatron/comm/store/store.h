// Store: a small shared dictionary through which ranks find each other before they can communicate.
//
// Keys and values are bytes; keys are at most kMaxStoreKey long, values at most kMaxStoreValue, and
// longer ones are refused with kInvalidArgument. Nothing is ever deleted. Waiting ends at a
// deadline with kDeadlineExceeded and the missing keys, or when the store is lost, with
// kUnavailable.
//
// Threads: all methods may be called by several threads at once.
#ifndef MEGATRON_COMM_STORE_STORE_H_
#define MEGATRON_COMM_STORE_STORE_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace megatron {

constexpr size_t kMaxStoreKey = 1 << 10;
constexpr size_t kMaxStoreValue = 1 << 20;

class Store {
 public:
  virtual ~Store() = default;

  virtual absl::Status Set(absl::string_view key, absl::string_view value) = 0;
  // Sets a key whose value becomes empty when this process ends, or its connection to the store
  // does. It holds one key; the one before keeps its value.
  virtual absl::Status Hold(absl::string_view key, absl::string_view value) = 0;
  // Waits until the key is there.
  virtual absl::StatusOr<std::string> Get(absl::string_view key, absl::Duration timeout) = 0;
  // Adds to a counter, which starts at 0, and returns the new value. The key then holds the number
  // in decimal; kFailedPrecondition if it holds something else.
  virtual absl::StatusOr<int64_t> Add(absl::string_view key, int64_t delta) = 0;
  // Waits until all keys are there.
  virtual absl::Status Wait(absl::Span<const std::string> keys, absl::Duration timeout) = 0;
};

}  // namespace megatron

#endif  // MEGATRON_COMM_STORE_STORE_H_
