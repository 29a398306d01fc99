// The calls that the threads of one rank are in, for those who watch the rank from other threads.
//
//   const CallActivity activity(&activities, {describe, describe_awaited, awaited});
//   ... the call ...
//
// Threads: any. Questions never wait for a thread that hangs: after 100 ms they are answered
// without the list.
#ifndef MEGATRON_COMM_WATCH_CALL_ACTIVITY_H_
#define MEGATRON_COMM_WATCH_CALL_ACTIVITY_H_

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
#include "megatron/comm/watch/deadlock.h"

namespace megatron {

class CallActivity;

class CallActivities {
 public:
  // Describes each call in one line.
  std::vector<std::string> Describe() const;
  // Returns each call and the ranks that it waits for.
  std::vector<WaitingCall> WaitingCalls() const;
  // Returns the world ranks that any of the calls waits for.
  std::set<int> Awaited() const;
  // Returns the processor time of the threads that are in calls.
  absl::Duration ProcessorTime() const;
  bool any() const { return count_.load() > 0; }

 private:
  friend class CallActivity;

  mutable absl::Mutex mutex_;
  std::vector<const CallActivity*> list_ ABSL_GUARDED_BY(mutex_);
  uint64_t begun_ ABSL_GUARDED_BY(mutex_) = 0;  // calls so far
  std::atomic<int> count_{0};
};

// A call of the thread that creates it, as long as it lives.
class CallActivity {
 public:
  // Other threads call these while the activity lives. They take no lock.
  struct Answers {
    absl::FunctionRef<std::string()> describe;  // "rank 1 of tp-0 (world rank 3) was in call 17"
    absl::FunctionRef<std::string()> describe_awaited;  // "; entered by: ...; awaited: ..."
    absl::FunctionRef<std::vector<int>()> awaited;      // the world ranks that have not arrived
  };

  CallActivity(CallActivities* activities, const Answers& answers);
  ~CallActivity();
  CallActivity(const CallActivity&) = delete;
  CallActivity& operator=(const CallActivity&) = delete;

 private:
  friend class CallActivities;

  CallActivities& activities_;
  clockid_t clock_;  // the processor clock of the thread
  const Answers answers_;
  uint64_t serial_ = 0;
};

}  // namespace megatron

#endif  // MEGATRON_COMM_WATCH_CALL_ACTIVITY_H_
