// Three stages at work at once, with everything leaving in the order in which it came: one thread
// fetches items, several work on them, and the caller's takes them away.
//
// Items live in the caller's `slots` places, numbered from 0, which are used again and again. Each
// stage is called with a place that no other stage touches then.
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
  // Nothing is fetched while items of this weight or more are under way.
  int64_t max_weight = INT64_MAX;

  // Fetches an item and returns its weight, at least 1; or 0 where there are no more. On a thread
  // of its own.
  std::function<absl::StatusOr<int64_t>(size_t slot)> fetch;
  // On any of the workers' threads.
  std::function<void(size_t slot)> work;
  // On the caller's thread, in the order of the fetches.
  std::function<absl::Status(size_t slot)> take;
  // On the caller's thread, after every take and about every tenth of a second; an error ends all.
  std::function<absl::Status()> tick;
  // Makes a fetch that waits return. Any thread may be inside of fetch.
  std::function<void()> stop_fetching;
};

// Returns when all is done and all threads have ended. The first error in the order of the items is
// returned: what came before a failed fetch is taken.
absl::Status RunOrderedPipeline(const OrderedPipeline& pipeline);

}  // namespace megatron

#endif  // MEGATRON_DATA_IO_ORDERED_PIPELINE_H_
