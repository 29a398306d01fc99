#include "megatron/comm/watch/deadlock_watch.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "megatron/base/steady_now.h"

namespace megatron {
namespace {

bool AllWait(const std::vector<WaitingCall>& calls) {
  return !calls.empty() &&
         absl::c_none_of(calls, [](const WaitingCall& call) { return call.awaited.empty(); });
}

// Returns whether the rank's own thread waits too: in a call, or for another thread that is in a
// call.
bool OwnThreadWaits(const RestingRank& rank, const std::vector<WaitingCall>& calls) {
  return rank.sleeps ||
         absl::c_any_of(calls, [&](const WaitingCall& call) { return call.thread == rank.thread; });
}

}  // namespace

WaitingRanks DeadlockWatch::OwnBlocked(const std::vector<RestingRank>& resting) {
  const absl::Time now = SteadyNow();
  WaitingRanks blocked;
  std::map<int, Wait> waits;
  for (const RestingRank& rank : resting) {
    std::vector<WaitingCall> calls = world_.WaitingCalls(rank.rank);
    if (!AllWait(calls)) continue;
    const auto before = waits_.find(rank.rank);
    const bool same = before != waits_.end() && SameCalls(before->second.calls, calls);
    const absl::Time since = same ? before->second.since : now;
    if (now >= since + patience_ && OwnThreadWaits(rank, calls) && world_.Idle()) {
      blocked[rank.rank] = calls;
    }
    waits[rank.rank] = {std::move(calls), since};
  }
  waits_ = std::move(waits);
  return blocked;
}

void DeadlockWatch::Share(const WaitingRanks& own) {
  if (own.empty() && !shared_) return;
  shared_ = !own.empty();
  world_.ShareBlockedCalls(own.empty() ? std::vector<WaitingCall>() : own.begin()->second);
}

absl::Status DeadlockWatch::Look(const std::vector<RestingRank>& resting) {
  WaitingRanks blocked = OwnBlocked(resting);
  Share(blocked);
  if (!blocked.empty()) blocked.merge(world_.OthersBlocked());
  WaitingRanks deadlock = FindDeadlock(blocked);
  const absl::Time now = SteadyNow();
  if (!SameRanksAndCalls(deadlock, deadlock_)) {
    deadlock_ = std::move(deadlock);
    deadlock_since_ = now;
  }
  if (deadlock_.empty() || now <= deadlock_since_ + world_.broadcast_age()) return absl::OkStatus();
  return absl::FailedPreconditionError(DescribeDeadlock(deadlock_));
}

}  // namespace megatron
