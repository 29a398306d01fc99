// Watches the ranks of this process from a thread of its own, tells once what went wrong when their
// world fails, and ends the process should they not end by themselves.
//
// What it tells: why the world failed; and of each process that can still be reached, what its
// ranks were at (iteration, phase, calls and whom they awaited) and where each of its threads is.
//
// It also finds a rank that is stuck: none of the threads that work for it has used any processor
// time for a while. Whoever waits for other ranks wakes up each second, so that waiting is not
// being stuck; starting, saving and generating may take as long as they like.
//
//   FaultMonitor monitor(WatchedWorld::Of(&job->world()), options);
//   // on each rank's thread:
//   const FaultMonitor::Watch watch(&monitor, rank, &progress);
//   ... train ...
//   if (!world.status().ok()) monitor.WaitUntilTold();
#ifndef MEGATRON_TRAIN_FAULT_MONITOR_H_
#define MEGATRON_TRAIN_FAULT_MONITOR_H_

#include <time.h>

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
#include "megatron/comm/tcp_communicator.h"
#include "megatron/comm/thread_communicator.h"
#include "megatron/train/failure.h"
#include "megatron/train/rank_progress.h"

namespace megatron {

// What the monitor asks of a world, whatever its ranks are.
struct WatchedWorld {
  int size = 0;
  // Whether an Abort is told too; else whoever caused it does.
  bool tells_aborts = false;
  std::function<absl::Status()> status;
  std::function<void(const absl::Status&)> abort;
  std::function<void(std::function<void(const absl::Status&)>)> set_failure_hook;
  std::function<std::vector<std::string>(int rank)> doing;
  // Of the threads that are in calls of a rank of this process.
  std::function<absl::Duration(int rank)> processor_time;
  // As TcpWorld::GatherStates.
  std::function<std::optional<std::map<int, std::string>>(std::string state, absl::Time deadline)>
      gather;

  static WatchedWorld Of(TcpWorld* world, int size);
  static WatchedWorld Of(ThreadWorld* world);
};

struct FaultMonitorOptions {
  absl::Duration stuck_after = absl::Seconds(10);  // zero: no rank is ever stuck
  // For other processes to say what they were at, and then for the ranks to end by themselves.
  absl::Duration gather_time = absl::Seconds(2);
  absl::Duration grace = absl::Seconds(2);
  // What a rank of this process has failed by, if one has: the code of a process that has to be
  // ended, and what it says if the world was aborted for it.
  std::function<std::optional<Failure>()> cause;
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
    absl::Duration used;  // processor time, when last looked at
    absl::Time since;     // when it last changed
  };

  void Run();
  absl::Status FindStuck() ABSL_LOCKS_EXCLUDED(mutex_);
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
  std::thread thread_;
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_FAULT_MONITOR_H_
