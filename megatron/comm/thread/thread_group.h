// Synchronizes the threads of one group in their calls, and ends every call of a world after a
// failure. What ranks do in a collective call is in thread_communicator.cc.
//
// A collective call is a *meeting* of all ranks: each arrives with its call, all see all calls,
// each does its share, and none departs before all have finished. A failure never ends a meeting
// that has begun: ranks are reading each other's buffers then, which must stay, and nothing can
// block them.
//
// A rank may hang while it holds the lock of a group. Threads that watch ranks, fail their world or
// report what they were doing wait for no lock for long: what they need most are atomics.
// docs/watching.md has the locks and their order.
#ifndef MEGATRON_COMM_THREAD_THREAD_GROUP_H_
#define MEGATRON_COMM_THREAD_THREAD_GROUP_H_

#include <time.h>

#include <atomic>
#include <cstdint>
#include <deque>
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
#include "megatron/comm/collective.h"
#include "megatron/comm/socket/first_error.h"
#include "megatron/comm/watch/deadlock.h"
#include "megatron/comm/world.h"

namespace megatron {

class ThreadGroup;

// The state that all groups of a world share. Thread-safe. Fail and Leave take the locks of groups:
// callers hold none of them.
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
  void SetFailureHook(FailureHook hook);
  // These are the methods of World (world.h).
  std::vector<std::string> CallsAtFailure(int world_rank) const;
  absl::Duration CallersProcessorTime(int world_rank) const;
  bool InCall(int world_rank) const;
  bool IsAwaited(int world_rank) const;
  std::vector<WaitingCall> WaitingCalls(int world_rank) const;
  absl::Status Overdue() const;

 private:
  void WakeAll();
  // Returns all groups; none if the lock is held by a thread that hangs.
  std::vector<std::shared_ptr<ThreadGroup>> Groups() const;

  const absl::Duration deadline_;
  std::vector<std::atomic<bool>> left_;
  // A lock that is held while a failure is reported to the hook. It comes before all other locks of
  // the world.
  absl::Mutex fail_mutex_;
  FailureHook failure_hook_ ABSL_GUARDED_BY(fail_mutex_);
  // The calls of each rank, by world rank. Written once, before failure_ is; then read by any
  // thread.
  std::vector<std::pair<int, std::string>> calls_at_failure_;
  std::atomic<bool> calls_at_failure_known_{false};
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
  // Returns "rank 1 of tp-0 (world rank 3)".
  std::string Describe(int rank) const;

  // Waits until all ranks have arrived with their next call. False if that failed: then no meeting
  // has begun. After true the rank reads call() and calls Depart once.
  bool Arrive(int rank, const CollectiveCall& call);
  const CollectiveCall& call(int rank) const { return *seats_[rank].call; }
  // The number of meetings that `rank` has arrived at, this one included.
  uint64_t calls(int rank) const { return seats_[rank].arrivals; }
  void Depart(int rank);

  // Sends and receives messages between pairs of ranks.
  void Exchange(int rank, absl::Span<const Transfer> sends, absl::Span<const Transfer> receives);

  // Returns the groups of this group's n-th Split, which the first rank to arrive makes. Null, and
  // a failed world, if ranks give different arguments.
  const std::vector<std::shared_ptr<ThreadGroup>>* SplitInto(
      int rank, const std::vector<std::vector<int>>& partition, const std::string& name);

  // The methods below may be called at any time by threads that are not ranks of the group.
  void Wake();
  bool InCall(int world_rank) const;
  absl::Duration CallerProcessorTime(int world_rank) const;
  bool IsAwaited(int world_rank);
  absl::Status Overdue() const;
  std::optional<WaitingCall> WaitingCallOf(int world_rank);
  // Describes each rank that waits: its world rank, its call and the ranks that it waits for.
  std::vector<std::pair<int, std::string>> DescribeWaiting();

 private:
  // An inlined vector, so that waiting allocates nothing.
  using Ranks = absl::InlinedVector<int, 16>;
  enum class Place : uint8_t { kNone, kEntering, kArriving, kDeparting, kExchanging };
  class ExchangeProgress;
  // The calls of one rank of the group. Its rank writes it under the mutex. Other threads read the
  // atomics at any time, the call during a meeting, and the rest under the mutex.
  struct Seat {
    const CollectiveCall* call = nullptr;
    // The ranks that the rank waits for in Exchange; null outside of it.
    const Ranks* exchanges_with = nullptr;
    const ExchangeProgress* exchange = nullptr;
    size_t splits = 0;
    std::atomic<Place> waits_in{Place::kNone};
    std::atomic<clockid_t> clock{};  // the processor clock of the thread that waits
    std::atomic<int64_t> waits_since{0};
    std::atomic<uint64_t> arrivals{0}, departures{0};
  };
  // The way from one rank to another, for one message at a time.
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
  // Returns null if the rank is not in the group.
  const Seat* SeatOf(int world_rank) const;
  // Marks the beginning of a call. It takes no lock, because the rank is about to wait for one.
  static void Enter(Seat* seat);
  // Waits for a change of the group. OK: look again. An error: why to stop waiting for `awaited`.
  absl::Status WaitFor(absl::Span<const int> awaited, absl::Time deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Return the ranks that have arrived at fewer meetings, or departed from fewer.
  Ranks Missing(uint64_t arrivals) const;
  Ranks Staying(uint64_t departures) const;
  // Describes the call that the seat's rank waits in and the awaited ranks; "" if it does not wait.
  // Without the mutex `all` must be false.
  std::string WaitingText(const Seat& seat, bool all) const;
  std::string DescribeAll(absl::Span<const int> ranks) const;

  const std::string name_;
  const std::vector<int> world_ranks_;
  const std::shared_ptr<ThreadWorldState> world_;

  absl::Mutex mutex_;
  absl::CondVar changed_;
  std::vector<Seat> seats_;
  std::vector<Channel> channels_ ABSL_GUARDED_BY(mutex_);
  // A deque, because ranks read one record while others add the next.
  std::deque<SplitRecord> splits_ ABSL_GUARDED_BY(mutex_);
  uint64_t arrived_ ABSL_GUARDED_BY(mutex_) = 0;   // arrivals of all ranks so far
  uint64_t departed_ ABSL_GUARDED_BY(mutex_) = 0;  // departures of all ranks so far
};

}  // namespace megatron

#endif  // MEGATRON_COMM_THREAD_THREAD_GROUP_H_
