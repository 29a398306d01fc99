// Finds deadlocks between ranks: rank 0 waits in a call of its tensor group for rank 1, which waits
// in a call of its data group for rank 0. Neither call is wrong by itself, and no rank is late; only
// the calls of all ranks together show the deadlock.
//
// A rank is *blocked* while it does nothing but wait in calls for other ranks. A set of blocked
// ranks each of whose calls waits for one of the set never continues, whatever the others do. This
// holds if all of them were blocked at one moment, with nothing in transit between them: the caller
// ensures it by knowing the calls for longer than a status broadcast takes (World::broadcast_age).
#ifndef MEGATRON_COMM_WATCH_DEADLOCK_H_
#define MEGATRON_COMM_WATCH_DEADLOCK_H_

#include <time.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace megatron {

// A call that a thread of a rank is in now.
struct WaitingCall {
  uint64_t serial = 0;       // unique among the calls of the rank
  clockid_t thread = {};     // the processor clock of the thread; valid in its process only
  std::vector<int> awaited;  // world ranks that have not arrived; none: it continues by itself
  std::string what;  // "rank 1 of tp-0 (world rank 3) was in call 17, all-reduce(sum) of ..."
};

// The calls of each blocked rank, by world rank.
using WaitingRanks = std::map<int, std::vector<WaitingCall>>;

bool SameCalls(const std::vector<WaitingCall>& a, const std::vector<WaitingCall>& b);
bool SameRanksAndCalls(const WaitingRanks& a, const WaitingRanks& b);

// Returns a set of ranks that wait for each other, a small one such as a ring of two or three. Empty:
// there is none.
WaitingRanks FindDeadlock(const WaitingRanks& blocked);

// Returns the message: "ranks wait for each other: rank 0 of tp-0 (world rank 0) was in call 17, ...,
// for world rank 1; ..."
std::string DescribeDeadlock(const WaitingRanks& deadlock);

// The status broadcast of a rank, as bytes. Only the first of many awaited ranks are in it.
std::string EncodeWaitingCalls(const std::vector<WaitingCall>& calls);
absl::StatusOr<std::vector<WaitingCall>> DecodeWaitingCalls(absl::string_view bytes);

}  // namespace megatron

#endif  // MEGATRON_COMM_WATCH_DEADLOCK_H_
