// Watches the ranks of this process from a thread of its own, tells once what went wrong when their
// world fails, and ends the process should they not end by themselves.
//
// What it tells: why the world failed; and of each process that can still be reached, what its
// ranks were at (iteration, phase, calls and whom they awaited) and where each of its threads is.
//
// It also finds ranks that do not get on by themselves:
// - one that is *stuck*: for a while it has begun nothing new, and none of the threads that work
//   for it has used any processor time. Whoever waits for other ranks wakes up four times a second,
//   so that waiting is not being stuck; nor is waiting for files and readers
//   (RankProgress::Outside).
// - one that is *late*: others wait for it, it waits for nobody, and what it is at takes many times
//   longer than any such piece of work ever has. The first piece of a kind is never late.
// - some that wait for each other (WaitWatch), because they have come to calls of different groups.
// The monitor waits for no lock that a hanging rank could hold.
//
//   FaultMonitor monitor(WatchedWorld::Of(&job->world()), options);
//   // on each rank's thread:
//   const FaultMonitor::Watch watch(&monitor, rank, &progress);
//   ... train ...
//   if (!world.status().ok()) monitor.WaitUntilTold();
#ifndef MEGATRON_TRAIN_FAILURE_FAULT_MONITOR_H_
#define MEGATRON_TRAIN_FAILURE_FAULT_MONITOR_H_

#include <time.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "megatron/train/failure/rank_progress.h"
#include "megatron/train/failure/wait_watch.h"
#include "megatron/train/failure/watched_world.h"

namespace megatron {

struct FaultMonitorOptions {
  // Zero: no rank is ever stuck or late, and none wait for each other.
  absl::Duration stuck_after = absl::Seconds(10);
  // A piece of work is late after this many times the longest of its phase; zero: never.
  int64_t late_factor = 10;
  // For other processes to say what they were at, and then for the ranks to end by themselves.
  absl::Duration gather_time = absl::Seconds(2);
  absl::Duration grace = absl::Seconds(2);
  // The failure of a rank of this process, if one has failed: gives the exit code of a process that
  // has to be ended, and is printed if the world was aborted for it.
  std::function<absl::Status()> cause;
};

class FaultMonitor {
 public:
  FaultMonitor(WatchedWorld world, const FaultMonitorOptions& options);
  ~FaultMonitor();

  // As long as it lives, the thread that made it is watched as a rank.
  class Watch {
   public:
    Watch(FaultMonitor* monitor, int rank, const RankProgress* progress);
    ~Watch();
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;

   private:
    FaultMonitor& monitor_;
    const int rank_;
  };

  // After the world has failed. Whether this process has told, or another one does: then nothing
  // is left to say about it.
  bool WaitUntilTold();

 private:
  struct Rank {
    const RankProgress* progress = nullptr;
    clockid_t clock;
    // When last looked at: processor time, with and without what calls take, and moves; and when
    // any of these, the rank's own or the moves last changed.
    absl::Duration used, own_used;
    uint64_t moves = 0;
    absl::Time worked, own_worked, moved;
  };
  // What the world knows of a rank.
  struct Calls {
    absl::Duration processor_time;
    bool any = false;
  };

  void Run();
  // Of ranks that do not get on; OK: there are none.
  absl::Status Look() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status LookAtRanks() ABSL_LOCKS_EXCLUDED(mutex_);
  // Those that have moved nothing for a while.
  std::vector<RestingRank> RestingRanks() ABSL_LOCKS_EXCLUDED(mutex_);
  std::map<int, Calls> CallsOfRanks() ABSL_LOCKS_EXCLUDED(mutex_);
  void Update(Rank* rank, const Calls& calls, bool was_away) const;
  absl::Duration LateAfter(const Rank& rank) const;
  // By the thread that has found the failure.
  void Remember(const absl::Status& reason) ABSL_LOCKS_EXCLUDED(mutex_);
  std::string OwnState() ABSL_LOCKS_EXCLUDED(mutex_);
  void Tell(const absl::Status& reason);
  [[noreturn]] void EndProcess(const absl::Status& reason);
  // Until the monitor ends or the time is over.
  bool StoppedWithin(absl::Duration time) ABSL_LOCKS_EXCLUDED(mutex_);

  const WatchedWorld world_;
  const FaultMonitorOptions options_;
  // The world calls Remember with its own locks held: nothing of it is called under this one.
  absl::Mutex mutex_;
  std::map<int, Rank> ranks_ ABSL_GUARDED_BY(mutex_);
  // At the failure, before those that waited were released: what ranks were at, and all threads.
  std::map<int, std::string> headings_ ABSL_GUARDED_BY(mutex_);
  std::string stacks_ ABSL_GUARDED_BY(mutex_);
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  bool told_ ABSL_GUARDED_BY(mutex_) = false;
  bool left_to_cause_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time last_look_ = absl::InfiniteFuture();
  WaitWatch wait_watch_;
  std::thread thread_;
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_FAILURE_FAULT_MONITOR_H_
