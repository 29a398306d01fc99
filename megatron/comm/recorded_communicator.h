// Records checksums of what a rank gives to others and gets from them, call by call.
//
//   CallRecord record;
//   ProcessGroup world(Recorded(communicator, &record));   // and every group split from it
//   record.Start();
//   ...
//   const std::vector<RecordedCall> calls = record.Stop();
//
// Two records of the same work tell which rank made a difference: the one that has given others
// something else although it had got the same until then. Tensors are those of the CPU.
#ifndef MEGATRON_COMM_RECORDED_COMMUNICATOR_H_
#define MEGATRON_COMM_RECORDED_COMMUNICATOR_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "megatron/comm/communicator.h"

namespace megatron {

struct RecordedCall {
  std::string group;
  std::string call;              // as CollectiveCall describes it
  uint32_t given = 0, got = 0;   // CRC-32C of the bytes
  int64_t began = 0, ended = 0;  // moments of the record
};

// The calls of one rank. Thread-safe.
class CallRecord {
 public:
  // Forgets what there is, and records from now on.
  void Start();
  // Records nothing from now on. Returns the calls of each group in their order.
  std::vector<RecordedCall> Stop();
  bool is_on() const { return is_on_; }
  // Returns a moment, which lies behind all that were returned before.
  int64_t Now() { return ++moments_; }
  void Add(RecordedCall call);

 private:
  std::atomic<bool> is_on_{false};
  std::atomic<int64_t> moments_{0};
  absl::Mutex mutex_;
  std::vector<RecordedCall> calls_ ABSL_GUARDED_BY(mutex_);
};

// Returns the communicator with its calls recorded, and those of the groups split from it. `record`
// must outlive it.
std::shared_ptr<Communicator> Recorded(std::shared_ptr<Communicator> communicator,
                                       CallRecord* record);

}  // namespace megatron

#endif  // MEGATRON_COMM_RECORDED_COMMUNICATOR_H_
