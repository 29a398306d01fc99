// Finds ranks that wait for each other (comm/deadlock.h), of this process and of others.
//
// Every process looks at its own ranks; those that have been blocked in the same calls for a while
// it makes known to the others. Where a deadlock stays the same for longer than news take it is
// one: what had been on its way to one of its ranks would have come.
#ifndef MEGATRON_TRAIN_FAILURE_WAIT_WATCH_H_
#define MEGATRON_TRAIN_FAILURE_WAIT_WATCH_H_

#include <time.h>

#include <map>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "megatron/comm/deadlock.h"
#include "megatron/train/failure/watched_world.h"

namespace megatron {

// That has begun no new piece of work for a while.
struct RestingRank {
  int rank = 0;
  clockid_t thread = {};  // its own
  bool sleeps = false;    // that thread, for long
};

// Threads: the monitor's.
class WaitWatch {
 public:
  // A rank counts as blocked after `patience`.
  WaitWatch(const WatchedWorld* world, absl::Duration patience)
      : world_(*world), patience_(patience) {}

  // Every now and then, with the ranks of this process that rest. kFailedPrecondition: some wait
  // for each other.
  absl::Status Look(const std::vector<RestingRank>& resting);

 private:
  struct Waits {
    std::vector<WaitingCall> calls;
    absl::Time since;
  };

  // Those that have long been so.
  WaitingRanks OwnBlocked(const std::vector<RestingRank>& resting);
  void Share(const WaitingRanks& own);

  const WatchedWorld& world_;
  const absl::Duration patience_;
  std::map<int, Waits> waits_;
  bool shared_ = false;
  // The last one found, and since when it has been there.
  WaitingRanks deadlock_;
  absl::Time deadlock_since_;
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_FAILURE_WAIT_WATCH_H_
