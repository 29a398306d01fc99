// What a FaultMonitor asks of a world, whether its ranks are threads or processes.
#ifndef MEGATRON_TRAIN_FAILURE_WATCHED_WORLD_H_
#define MEGATRON_TRAIN_FAILURE_WATCHED_WORLD_H_

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "megatron/comm/deadlock.h"
#include "megatron/comm/tcp/tcp_communicator.h"
#include "megatron/comm/thread/thread_communicator.h"

namespace megatron {

struct WatchedWorld {
  int size = 0;
  // Whether an Abort is told too; else whoever caused it does.
  bool tells_aborts = false;
  std::function<absl::Status()> status;
  std::function<void(const absl::Status&)> abort;
  std::function<void(std::function<void(const absl::Status&)>)> set_failure_hook;
  std::function<std::vector<std::string>(int rank)> doing;
  // Of the threads that are in calls of a rank of this process; and whether there are any.
  std::function<absl::Duration(int rank)> processor_time;
  std::function<bool(int rank)> in_call;
  // Whether other ranks wait for a rank of this process.
  std::function<bool(int rank)> is_awaited;
  // The calls that a rank of this process is in.
  std::function<std::vector<WaitingCall>(int rank)> waiting;
  // Whether nothing is on its way between those calls and the ranks of other processes.
  std::function<bool()> idle;
  // Tells the other processes that a rank of this one is blocked in these calls; none: it is not.
  std::function<void(const std::vector<WaitingCall>&)> share_blocked;
  // What they say so, and how old that can be.
  std::function<WaitingRanks()> others_blocked;
  absl::Duration news_time;
  // Of a call that has waited beyond its deadline and cannot say so itself.
  std::function<absl::Status()> overdue;
  // As TcpWorld::GatherStates.
  std::function<std::optional<std::map<int, std::string>>(std::string state, absl::Time deadline)>
      gather;

  static WatchedWorld Of(TcpWorld* world, int size);
  static WatchedWorld Of(ThreadWorld* world);
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_FAILURE_WATCHED_WORLD_H_
