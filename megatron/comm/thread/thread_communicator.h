// The communicator between threads of one process: for tests, and for training with several ranks
// on one CPU.
//
// Ranks read each other's buffers directly; there is no copy in between and steady-state calls
// allocate nothing. Every call is compared across ranks before data moves.
//
// A failure anywhere ends every call of every group of the world: a mismatched call, a rank that
// does not arrive before the deadline, a rank that has left, an Abort. The status names what each
// rank did.
//
//   ThreadWorld world(4);
//   // on thread r:
//   ProcessGroup all(world.communicator(r));
//
// RunRanks (run_ranks.h) starts the threads, too.
#ifndef MEGATRON_COMM_THREAD_THREAD_COMMUNICATOR_H_
#define MEGATRON_COMM_THREAD_THREAD_COMMUNICATOR_H_

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "megatron/comm/watch/deadlock.h"
#include "megatron/comm/world.h"

namespace megatron {

class Communicator;

struct ThreadWorldOptions {
  // The longest time that one call waits for other ranks.
  absl::Duration deadline = absl::Minutes(10);
};

// Threads: all methods may be called by any thread. The world may die before its communicators.
class ThreadWorld : public World {
 public:
  explicit ThreadWorld(int size, const ThreadWorldOptions& options = {});

  // Returns the same communicator each time.
  std::shared_ptr<Communicator> communicator(int rank) const;
  // Tells that a rank makes no more calls: whoever waits for it, now or later, fails at once.
  void Leave(int rank);

  int size() const override;
  bool spans_processes() const override { return false; }
  absl::Status status() const override;
  void Abort(const absl::Status& reason) override;
  void SetFailureHook(FailureHook hook) override;
  std::vector<std::string> CallsAtFailure(int rank) const override;
  std::optional<std::map<int, std::string>> GatherStates(std::string state,
                                                         absl::Time deadline) override;
  bool InCall(int rank) const override;
  absl::Duration CallersProcessorTime(int rank) const override;
  bool IsAwaited(int rank) const override;
  std::vector<WaitingCall> WaitingCalls(int rank) const override;
  bool Idle() const override { return true; }
  void ShareBlockedCalls(const std::vector<WaitingCall>&) override {}
  WaitingRanks OthersBlocked() const override { return {}; }
  absl::Duration broadcast_age() const override { return absl::ZeroDuration(); }
  absl::Status Overdue() const override;

 private:
  std::shared_ptr<class ThreadWorldState> state_;
  std::vector<std::shared_ptr<Communicator>> communicators_;
};

}  // namespace megatron

#endif  // MEGATRON_COMM_THREAD_THREAD_COMMUNICATOR_H_
