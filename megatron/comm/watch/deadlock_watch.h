// Finds ranks that wait for each other (deadlock.h), in this process and in others.
//
// Every process looks at its own ranks and broadcasts which have been blocked in the same calls for
// a while. A set of ranks that wait for each other counts as a deadlock when it stays the same for
// longer than a status broadcast takes: a message in transit to one of them would have arrived.
#ifndef MEGATRON_COMM_WATCH_DEADLOCK_WATCH_H_
#define MEGATRON_COMM_WATCH_DEADLOCK_WATCH_H_

#include <time.h>

#include <map>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "megatron/comm/watch/deadlock.h"
#include "megatron/comm/world.h"

namespace megatron {

// A rank that has begun no new work for a while.
struct RestingRank {
  int rank = 0;
  clockid_t thread = {};  // the processor clock of the rank's own thread
  bool sleeps = false;    // whether that thread has used no processor time for long
};

// Threads: the monitor's only.
class DeadlockWatch {
 public:
  // A rank counts as blocked after `patience`.
  DeadlockWatch(World* world, absl::Duration patience) : world_(*world), patience_(patience) {}

  // Looks for a deadlock, given the ranks of this process that rest. It is called now and then.
  // kFailedPrecondition: some ranks wait for each other.
  absl::Status Look(const std::vector<RestingRank>& resting);

 private:
  struct Wait {
    std::vector<WaitingCall> calls;
    absl::Time since;
  };

  // Returns the ranks of this process that have been blocked for long.
  WaitingRanks OwnBlocked(const std::vector<RestingRank>& resting);
  void Share(const WaitingRanks& own);

  World& world_;
  const absl::Duration patience_;
  std::map<int, Wait> waits_;  // indexed by rank
  bool shared_ = false;        // whether the last broadcast named a blocked rank
  // The deadlock that was found last, and since when it has been the same.
  WaitingRanks deadlock_;
  absl::Time deadlock_since_;
};

}  // namespace megatron

#endif  // MEGATRON_COMM_WATCH_DEADLOCK_WATCH_H_
