// What the threads of one rank are doing in calls of a TcpWorld, for messages about failures.
//
// Threads: any. Whoever asks waits for no thread that hangs.
#ifndef MEGATRON_COMM_TCP_TCP_ACTIVITY_H_
#define MEGATRON_COMM_TCP_TCP_ACTIVITY_H_

#include <time.h>

#include <atomic>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace megatron {

class TcpActivity;

class TcpActivities {
 public:
  // One line for each.
  std::vector<std::string> Describe() const;
  // Whether one of them waits for that rank of the world.
  bool Await(int world_rank) const;
  // Of the threads that are doing something.
  absl::Duration ProcessorTime() const;
  bool any() const { return count_.load() > 0; }

 private:
  friend class TcpActivity;

  mutable absl::Mutex mutex_;
  std::vector<const TcpActivity*> list_ ABSL_GUARDED_BY(mutex_);
  std::atomic<int> count_{0};
};

// What the thread that makes it is doing, as long as it lives. Other threads call `describe`, and
// `awaits` to hear whether it waits for a rank of the world.
class TcpActivity {
 public:
  TcpActivity(TcpActivities* activities, absl::FunctionRef<std::string()> describe,
              absl::FunctionRef<bool(int world_rank)> awaits);
  ~TcpActivity();
  TcpActivity(const TcpActivity&) = delete;
  TcpActivity& operator=(const TcpActivity&) = delete;

 private:
  friend class TcpActivities;

  TcpActivities& activities_;
  clockid_t clock_;  // the processor time of the thread
  const absl::FunctionRef<std::string()> describe_;
  const absl::FunctionRef<bool(int)> awaits_;
};

}  // namespace megatron

#endif  // MEGATRON_COMM_TCP_TCP_ACTIVITY_H_
