// Communicator between threads of one process: the engine of tests, and of training with several
// ranks on one CPU.
//
// Ranks read each other's buffers directly; there is no copy in between and steady-state calls
// allocate nothing. Every call is compared across ranks before data moves.
//
// A failure anywhere ends every call of every group of the world: a mismatched call, a rank that
// does not come before the deadline, a rank that has left, an Abort. The status names who did what.
//
//   ThreadWorld world(4);
//   // on thread r:
//   ProcessGroup all(world.communicator(r));
//
// RunRanks (run_ranks.h) starts the threads too.
#ifndef MEGATRON_COMM_THREAD_THREAD_COMMUNICATOR_H_
#define MEGATRON_COMM_THREAD_THREAD_COMMUNICATOR_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "megatron/comm/communicator.h"
#include "megatron/comm/deadlock.h"

namespace megatron {

struct ThreadWorldOptions {
  // The longest time that one call waits for other ranks.
  absl::Duration deadline = absl::Minutes(10);
};

// Threads: all methods may be called by any thread. The world may die before its communicators.
class ThreadWorld {
 public:
  explicit ThreadWorld(int size, const ThreadWorldOptions& options = {});

  int size() const;
  // The same one each time.
  std::shared_ptr<Communicator> communicator(int rank) const;

  // Says that a rank makes no more calls: whoever waits for it, now or later, fails at once.
  void Leave(int rank);
  void Abort(const absl::Status& reason);
  // The first failure.
  absl::Status status() const;
  // Called once, at the first failure and before anybody who waits is released, by the thread that
  // found it; it may call nothing of this world. Null: none.
  void SetFailureHook(std::function<void(const absl::Status&)> hook);
  // Of the threads that are in calls of a rank now: they wake up now and then, however long they
  // wait.
  absl::Duration CallersProcessorTime(int rank) const;
  bool InCall(int rank) const;     // whether there are any
  bool IsAwaited(int rank) const;  // whether another rank waits for this one to come
  // The calls that a rank is in, and whom they wait for.
  std::vector<WaitingCall> Waiting(int rank) const;
  // Of a call that has waited well beyond the deadline and can no longer say so itself, because a
  // rank hangs in the middle of it; OK: there is none.
  absl::Status Overdue() const;
  // What a rank was waiting for when the world failed, one line for each group.
  std::vector<std::string> Doing(int rank) const;

 private:
  std::shared_ptr<class ThreadWorldState> state_;
  std::vector<std::shared_ptr<Communicator>> communicators_;
};

}  // namespace megatron

#endif  // MEGATRON_COMM_THREAD_THREAD_COMMUNICATOR_H_
