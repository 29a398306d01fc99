// Counts the bytes that a rank sends, by group and operation, to compare with a design's promise.
//
//   BytesSent sent;
//   ProcessGroup world(Counted(communicator, &sent));   // and every group split from it
//   ...
//   sent.Of("dp-cp", Collective::kReduceScatter)
//
// It counts the bytes that an optimal engine would send (docs/parallelism.md), whatever the
// communicator does.
#ifndef MEGATRON_COMM_COUNTED_COMMUNICATOR_H_
#define MEGATRON_COMM_COUNTED_COMMUNICATOR_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "megatron/comm/collective.h"

namespace megatron {

class Communicator;

// The bytes and calls of one rank. Thread-safe.
class BytesSent {
 public:
  void Add(const std::string& group, Collective collective, int64_t bytes);
  // Returns the bytes of all groups whose names begin with `prefix`.
  int64_t Of(const std::string& prefix, Collective collective) const;
  // Returns the number of these calls.
  int64_t CallsOf(const std::string& prefix, Collective collective) const;
  int64_t Total() const;
  void Reset();

 private:
  struct Count {
    int64_t bytes = 0, calls = 0;
  };
  Count CountOf(const std::string& prefix, Collective collective) const;

  mutable absl::Mutex mutex_;
  std::map<std::pair<std::string, Collective>, Count> counts_ ABSL_GUARDED_BY(mutex_);
};

// Returns the bytes that each of `size` ranks sends if data moves no more than necessary:
// 2 (n - 1) / n of an all-reduced buffer, (n - 1) / n of what is gathered, scattered or exchanged
// with all, all of what a root broadcasts, counted once.
int64_t OptimalBytesSent(const CollectiveCall& call, int size, int rank);

// Returns the communicator with its calls counted, and those of the groups split from it.
std::shared_ptr<Communicator> Counted(std::shared_ptr<Communicator> communicator, BytesSent* sent);

}  // namespace megatron

#endif  // MEGATRON_COMM_COUNTED_COMMUNICATOR_H_
