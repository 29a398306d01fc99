// What the threads of one rank are doing in calls of a TcpWorld, for messages about failures.
//
// Threads: any. Whoever asks waits for no thread that hangs.
#ifndef MEGATRON_COMM_TCP_TCP_ACTIVITY_H_
#define MEGATRON_COMM_TCP_TCP_ACTIVITY_H_

#include <time.h>

#include <atomic>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "megatron/comm/deadlock.h"

namespace megatron {

class TcpActivity;

class TcpActivities {
 public:
  // One line for each.
  std::vector<std::string> Describe() const;
  // Each as a call that waits.
  std::vector<WaitingCall> Waiting() const;
  // The ranks of the world that any of them waits for.
  std::set<int> Awaited() const;
  // Of the threads that are doing something.
  absl::Duration ProcessorTime() const;
  bool any() const { return count_.load() > 0; }

 private:
  friend class TcpActivity;

  mutable absl::Mutex mutex_;
  std::vector<const TcpActivity*> list_ ABSL_GUARDED_BY(mutex_);
  uint64_t begun_ ABSL_GUARDED_BY(mutex_) = 0;  // ever
  std::atomic<int> count_{0};
};

// What the thread that makes it is doing, as long as it lives. Other threads ask.
class TcpActivity {
 public:
  struct Answers {
    absl::FunctionRef<std::string()> what;  // "rank 1 of tp-0 (world rank 3) was in call 17"
    absl::FunctionRef<std::string()> whom;  // "; come: ...; awaited: ..."
    absl::FunctionRef<std::vector<int>()> awaited;  // the ranks of the world that have not come
  };

  TcpActivity(TcpActivities* activities, const Answers& answers);
  ~TcpActivity();
  TcpActivity(const TcpActivity&) = delete;
  TcpActivity& operator=(const TcpActivity&) = delete;

 private:
  friend class TcpActivities;

  TcpActivities& activities_;
  clockid_t clock_;  // the processor time of the thread
  const Answers answers_;
  uint64_t serial_ = 0;
};

}  // namespace megatron

#endif  // MEGATRON_COMM_TCP_TCP_ACTIVITY_H_
