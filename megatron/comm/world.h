// World: what a rank's monitor (watch/fault_monitor.h) asks of the ranks' world, whether the ranks
// are threads of one process (ThreadWorld) or processes (TcpWorld).
//
// Ranks are world ranks. "A rank of this process" is every rank of a ThreadWorld, and the one rank
// of a TcpWorld.
//
// Threads: all methods may be called by any thread. None waits for a thread that hangs.
// docs/watching.md has the locks.
#ifndef MEGATRON_COMM_WORLD_H_
#define MEGATRON_COMM_WORLD_H_

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "megatron/comm/watch/deadlock.h"

namespace megatron {

using FailureHook = std::function<void(const absl::Status& reason)>;

class World {
 public:
  virtual ~World() = default;

  // The number of ranks.
  virtual int size() const = 0;
  // Returns whether the ranks are processes. Then the monitor reports an Abort too; else whoever
  // called Abort reports it.
  virtual bool spans_processes() const = 0;

  // The first failure.
  virtual absl::Status status() const = 0;
  // Ends all calls of all ranks with `reason`, unless the world has failed before.
  virtual void Abort(const absl::Status& reason) = 0;
  // Sets what the thread that finds the first failure calls once, before any call ends. It may call
  // nothing of this world. Null: nothing is called.
  virtual void SetFailureHook(FailureHook hook) = 0;
  // Describes the calls that a rank of this process was in when the world failed, one line for
  // each.
  virtual std::vector<std::string> CallsAtFailure(int rank) const = 0;
  // Gives `state`, a text about the ranks of this process, after a failure to the process of the
  // lowest rank that can be reached. There it returns the texts of all such processes, by rank, as
  // far as they arrive before the deadline; elsewhere it returns nothing.
  virtual std::optional<std::map<int, std::string>> GatherStates(std::string state,
                                                                 absl::Time deadline) = 0;

  // Returns whether any thread is in a call of a rank of this process.
  virtual bool InCall(int rank) const = 0;
  // The processor time of these threads. They wake up now and then, however long they wait.
  virtual absl::Duration CallersProcessorTime(int rank) const = 0;
  // Returns whether another rank waits for a rank of this process. Other processes tell so with
  // every heartbeat.
  virtual bool IsAwaited(int rank) const = 0;
  // The calls that a rank of this process is in, and the ranks that they wait for.
  virtual std::vector<WaitingCall> WaitingCalls(int rank) const = 0;
  // Returns whether nothing is in transit between these calls and the ranks of other processes.
  virtual bool Idle() const = 0;
  // Broadcasts to the other processes that a rank of this process is blocked in `calls`; empty: it
  // is not blocked.
  virtual void ShareBlockedCalls(const std::vector<WaitingCall>& calls) = 0;
  // Returns what the other processes have broadcast so. It is not older than broadcast_age().
  virtual WaitingRanks OthersBlocked() const = 0;
  virtual absl::Duration broadcast_age() const = 0;
  // The error of a call that has waited well beyond its deadline and cannot report so itself,
  // because a rank hangs in the middle of it; OK: there is none.
  virtual absl::Status Overdue() const = 0;
};

}  // namespace megatron

#endif  // MEGATRON_COMM_WORLD_H_
