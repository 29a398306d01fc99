// Watches the ranks of this process from a thread of its own. When their world fails, it prints
// once why, and ends the process if the ranks do not end by themselves.
//
//   FaultMonitor monitor(&job->world(), options);
//   // on each rank's thread:
//   const FaultMonitor::Watch watch(&monitor, rank, &progress);
//   ... train ...
//   if (!world.status().ok()) monitor.WaitUntilReported();
//
// The report says why the world failed and, for each process that can still be reached, what its
// ranks were doing (iteration, phase, calls and the ranks that these awaited) and the stack of each
// of its threads.
//
// The monitor also finds ranks that do not progress:
// - A *stuck* rank has begun no new work for a while, and none of the threads that work for it has
//   used any processor time. Threads that wait for other ranks wake up four times a second, so that
//   waiting is not being stuck; neither is an external wait (RankProgress::ExternalWait).
// - A *late* rank is awaited by others, waits for none, and its piece of work takes many times
//   longer than any piece of that phase before. The first piece of a phase is never late.
// - Ranks that wait for each other have called in different groups (deadlock_watch.h).
//
// The monitor waits for no lock that a hanging rank could hold: see docs/watching.md.
#ifndef MEGATRON_COMM_WATCH_FAULT_MONITOR_H_
#define MEGATRON_COMM_WATCH_FAULT_MONITOR_H_

#include <time.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "megatron/comm/watch/deadlock_watch.h"
#include "megatron/comm/watch/rank_progress.h"
#include "megatron/comm/world.h"

namespace megatron {

// The exit code and last words of a process that the monitor has to end.
struct ProcessEnd {
  int exit_code = 1;
  std::string message;
};

struct FaultMonitorOptions {
  // If zero, no rank is ever stuck or late, and deadlocks are not looked for.
  absl::Duration stuck_after = absl::Seconds(10);
  // A piece of work is late after this many times the longest of its phase; zero: never.
  int64_t late_factor = 10;
  // The time for other processes to send what they were doing, and then for the ranks to end by
  // themselves.
  absl::Duration gather_time = absl::Seconds(2);
  absl::Duration grace = absl::Seconds(2);
  // The same where another process was lost, and this one may go on without it: then only the cause
  // is printed, and the rest of the report is withheld. A process that finds that its own rank is
  // stuck prints what that was doing. Zero: as above.
  absl::Duration grace_without_others;
  // Describes the calls of a rank of this process on its device, for reports. Null: none.
  std::function<std::vector<std::string>(int rank)> device_calls;
  // Chooses how the process ends after the world has failed with `reason`. The message is printed
  // only if the report left it to whoever called Abort. Null: exit code 1 and the reason's message.
  std::function<ProcessEnd(const absl::Status& reason)> process_end;
  // Hears of the world's failure in the one process that prints the report, after it is printed and
  // before any process ends because of it. `iteration` is the latest that a rank of this process
  // has begun. Null: nobody.
  std::function<void(const absl::Status& reason, int64_t iteration)> on_report;
};

class FaultMonitor {
 public:
  // The world must outlive the monitor.
  FaultMonitor(World* world, const FaultMonitorOptions& options);
  ~FaultMonitor();

  // The thread that creates it is watched as a rank as long as it lives.
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

  // Waits until the monitor has reported the failure, after the world has failed. False: the caller
  // is left to report it, because a rank of this process aborted the world.
  bool WaitUntilReported();

  // Returns what a report has left out, for the case that this process does not go on; empty in a
  // process that has not printed the report. After WaitUntilReported.
  std::string withheld() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Rank {
    const RankProgress* progress = nullptr;
    clockid_t clock;
    // The state at the last look: the processor time with and without that of calls, and the moves.
    absl::Duration used, own_used;
    uint64_t moves = 0;
    // The times at which each of these last changed.
    absl::Time worked, own_worked, moved;
  };
  // The calls that a rank is in, as its world reports them.
  struct Calls {
    absl::Duration processor_time;
    bool any = false;
  };

  void Run();
  // Returns the error of ranks that do not progress; OK: there are none.
  absl::Status Look() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status LookAtRanks() ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the ranks that have begun no new work for a while.
  std::vector<RestingRank> RestingRanks() ABSL_LOCKS_EXCLUDED(mutex_);
  std::map<int, Calls> CallsOfRanks() ABSL_LOCKS_EXCLUDED(mutex_);
  // `away` is the time for which this thread did not run though it should have.
  void Update(Rank* rank, const Calls& calls, absl::Duration away) const;
  absl::Duration LateAfter(const Rank& rank) const;
  // The world's failure hook: runs on the thread that has found the failure.
  void Remember(const absl::Status& reason) ABSL_LOCKS_EXCLUDED(mutex_);
  std::string OwnState() ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether this process may go on without others that were lost.
  bool GoesOn(const absl::Status& reason) const;
  void Report(const absl::Status& reason);
  void TellReported(const absl::Status& reason) ABSL_LOCKS_EXCLUDED(mutex_);
  [[noreturn]] void EndProcess(const absl::Status& reason);
  // Waits for `time`, or until the monitor ends: then true.
  bool StoppedWithin(absl::Duration time) ABSL_LOCKS_EXCLUDED(mutex_);

  World& world_;
  const FaultMonitorOptions options_;
  // The world calls Remember with its own locks held: nothing of the world is called under this
  // lock.
  absl::Mutex mutex_;
  std::map<int, Rank> ranks_ ABSL_GUARDED_BY(mutex_);
  // The report's parts, taken at the failure, before any call ended: what each rank was doing, and
  // all threads' stacks.
  std::map<int, std::string> headings_ ABSL_GUARDED_BY(mutex_);
  std::string stacks_ ABSL_GUARDED_BY(mutex_);
  int64_t iteration_ ABSL_GUARDED_BY(mutex_) = 0;  // the latest of these ranks
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  bool reported_ ABSL_GUARDED_BY(mutex_) = false;
  bool left_to_aborter_ ABSL_GUARDED_BY(mutex_) = false;
  std::string withheld_ ABSL_GUARDED_BY(mutex_);
  bool is_own_ = false;  // the failure was found here
  absl::Time last_look_ = absl::InfiniteFuture();
  DeadlockWatch deadlock_watch_;
  std::thread thread_;
};

}  // namespace megatron

#endif  // MEGATRON_COMM_WATCH_FAULT_MONITOR_H_
