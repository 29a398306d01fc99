// How the threads of one group meet, and how a failure ends every meeting of a world. What ranks do
// when they have met is thread_communicator.cc's.
//
// A collective call is a *meeting*: each rank arrives with its call, all see all calls, each does
// its share, and none departs before all have finished. A failure never ends a meeting that has
// begun: then ranks are reading each other's buffers, which must stay, and nothing can block them.
//
// Ranks may hang, also with the lock of a group in hand. Whoever watches them, fails their world or
// tells what they were at waits for no lock for long: what it needs most is readable without.
#ifndef MEGATRON_COMM_THREAD_THREAD_GROUP_H_
#define MEGATRON_COMM_THREAD_THREAD_GROUP_H_

#include <time.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "megatron/comm/communicator.h"
#include "megatron/comm/deadlock.h"
#include "megatron/comm/socket/first_error.h"

namespace megatron {

class ThreadGroup;

// What all groups of a world share. Thread-safe. Fail and Leave take the locks of groups: callers
// hold none.
class ThreadWorldState {
 public:
  ThreadWorldState(int size, absl::Duration deadline) : deadline_(deadline), left_(size) {}

  int size() const { return static_cast<int>(left_.size()); }
  absl::Duration deadline() const { return deadline_; }

  void Register(const std::shared_ptr<ThreadGroup>& group);
  // The first failure stays.
  void Fail(const absl::Status& status);
  void Leave(int world_rank);

  bool failed() const { return !failure_.ok(); }
  bool has_left(int world_rank) const { return left_[world_rank].load(std::memory_order_acquire); }
  absl::Status status() const { return failure_.Get(); }
  void SetFailureHook(std::function<void(const absl::Status&)> hook);
  // What a rank was waiting for when the world failed, one line for each group.
  std::vector<std::string> Doing(int world_rank) const;
  // Of the threads that wait in calls of a rank.
  absl::Duration CallersProcessorTime(int world_rank) const;
  // Whether there are any.
  bool InCall(int world_rank) const;
  // Whether another rank waits for this one to come.
  bool IsAwaited(int world_rank) const;
  // The calls that a rank is in, and whom they wait for.
  std::vector<WaitingCall> Waiting(int world_rank) const;
  // Of a call that has waited well beyond the deadline and can no longer say so itself, because a
  // rank hangs in the middle of it; OK: there is none.
  absl::Status Overdue() const;

 private:
  void WakeAll();
  // Those of which anything can be known now.
  std::vector<std::shared_ptr<ThreadGroup>> Groups() const;

  const absl::Duration deadline_;
  std::vector<std::atomic<bool>> left_;
  absl::Mutex fail_mutex_;  // held while a failure is told to the hook
  std::function<void(const absl::Status&)> failure_hook_ ABSL_GUARDED_BY(fail_mutex_);
  // By world ranks. Written once, before failure_ is; then read by all.
  std::vector<std::pair<int, std::string>> doing_;
  std::atomic<bool> doing_known_{false};
  FirstError failure_;
  mutable absl::Mutex mutex_;
  std::vector<std::weak_ptr<ThreadGroup>> groups_ ABSL_GUARDED_BY(mutex_);
};

class ThreadGroup {
 public:
  ThreadGroup(std::string name, std::vector<int> world_ranks,
              std::shared_ptr<ThreadWorldState> world);

  int size() const { return static_cast<int>(world_ranks_.size()); }
  const std::string& name() const { return name_; }
  ThreadWorldState& world() const { return *world_; }
  // "rank 1 of tp-0 (world rank 3)"
  std::string Describe(int rank) const;

  // Waits until all ranks have arrived with their next call. False if that failed; then the rank
  // has not met anyone. After true come reads of call() and one Depart.
  bool Arrive(int rank, const CollectiveCall& call);
  const CollectiveCall& call(int rank) const { return *seats_[rank].call; }
  // Meetings that `rank` has arrived at, this one included.
  uint64_t calls(int rank) const { return seats_[rank].arrivals; }
  void Depart(int rank);

  // Delivers messages between pairs of ranks.
  void Exchange(int rank, absl::Span<const Transfer> sends, absl::Span<const Transfer> receives);

  // The groups of the n-th Split of this group, made by the first rank to come. Null, and a failed
  // world, if ranks give different arguments.
  const std::vector<std::shared_ptr<ThreadGroup>>* SplitInto(
      int rank, const std::vector<std::vector<int>>& partition, const std::string& name);

  // What others than its ranks may ask for, at any time.
  void Wake();
  bool InCall(int world_rank) const;
  absl::Duration CallerProcessorTime(int world_rank) const;
  bool IsAwaited(int world_rank);
  absl::Status Overdue() const;
  std::optional<WaitingCall> WaitingCallOf(int world_rank);
  // Who waits in which call for whom, by world rank.
  std::vector<std::pair<int, std::string>> Waiting();

 private:
  // Inlined: waiting allocates nothing.
  using Ranks = absl::InlinedVector<int, 16>;
  enum class Place : uint8_t { kNone, kEntering, kArriving, kDeparting, kExchanging };
  class ExchangeProgress;
  // Written by its rank under the mutex. Others read atoms at any time, the call during a meeting,
  // and the rest under the mutex.
  struct Seat {
    const CollectiveCall* call = nullptr;
    const Ranks* exchanges_with = nullptr;       // while it waits in Exchange
    const ExchangeProgress* exchange = nullptr;  // likewise
    size_t splits = 0;
    std::atomic<Place> waits_in{Place::kNone};
    std::atomic<clockid_t> clock{};  // of the thread that waits
    std::atomic<int64_t> waits_since{0};
    std::atomic<uint64_t> arrivals{0}, departures{0};
  };
  // From one rank to another: at most one message at a time.
  struct Channel {
    const Tensor* message = nullptr;
    bool claimed = false;  // the receiver is copying
  };
  struct SplitRecord {
    std::vector<std::vector<int>> partition;
    std::string name;
    std::vector<std::shared_ptr<ThreadGroup>> groups;
  };

  Channel& channel(int from, int to) { return channels_[from * size() + to]; }
  const Seat* SeatOf(int world_rank) const;  // null: no member
  // Without the mutex, which the rank is about to take.
  static void Enter(Seat* seat);
  // Waits for a change. OK: look again. Else why to stop waiting for `awaited` ranks.
  absl::Status WaitFor(absl::Span<const int> awaited, absl::Time deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Who has not come to so many meetings, and who has not gone from so many.
  Ranks Missing(uint64_t arrivals) const;
  Ranks Staying(uint64_t departures) const;
  // What the seat's rank waits in and for whom, "" if it does not. Without the mutex not `all`.
  std::string WaitingText(const Seat& seat, bool all) const;
  std::string DescribeAll(absl::Span<const int> ranks) const;

  const std::string name_;
  const std::vector<int> world_ranks_;
  const std::shared_ptr<ThreadWorldState> world_;

  absl::Mutex mutex_;
  absl::CondVar changed_;
  std::vector<Seat> seats_;
  std::vector<Channel> channels_ ABSL_GUARDED_BY(mutex_);
  // Ranks read one while others add the next: they stay where they are.
  std::deque<SplitRecord> splits_ ABSL_GUARDED_BY(mutex_);
  uint64_t arrived_ ABSL_GUARDED_BY(mutex_) = 0;   // of all ranks, ever
  uint64_t departed_ ABSL_GUARDED_BY(mutex_) = 0;  // likewise
};

}  // namespace megatron

#endif  // MEGATRON_COMM_THREAD_THREAD_GROUP_H_
