// Runs three stages concurrently and keeps the order of the items: one thread fetches items,
// several threads work on them, and the caller's thread takes the results.
//
// Items live in the caller's `slots` slots, numbered from 0, which are reused. A stage is called
// with a slot that no other stage touches at that time.
#ifndef MEGATRON_DATA_IO_ORDERED_PIPELINE_H_
#define MEGATRON_DATA_IO_ORDERED_PIPELINE_H_

#include <cstddef>
#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace megatron {

struct OrderedPipeline {
  int workers = 1;
  size_t slots = 4;
  // No item is fetched while the items in progress have this total weight or more.
  int64_t max_weight = INT64_MAX;

  // Fetches an item and returns its weight, at least 1, or 0 if there are no more. Called on a
  // thread of its own.
  std::function<absl::StatusOr<int64_t>(size_t slot)> fetch;
  // work is called on any of the workers' threads.
  std::function<void(size_t slot)> work;
  // take is called on the caller's thread, in the order of the fetches.
  std::function<absl::Status(size_t slot)> take;
  // tick is called on the caller's thread after every take and about every tenth of a second; an
  // error ends the pipeline.
  std::function<absl::Status()> tick;
  // Makes a fetch that is waiting return. It is called while another thread may be inside of fetch.
  std::function<void()> stop_fetching;
};

// Returns when all items are done and all threads have ended. Returns the first error in the order
// of the items: items before a failed fetch are still taken.
absl::Status RunOrderedPipeline(const OrderedPipeline& pipeline);

}  // namespace megatron

#endif  // MEGATRON_DATA_IO_ORDERED_PIPELINE_H_
