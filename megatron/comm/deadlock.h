// Whether ranks wait for each other for ever: rank 0 has come to a call of its tensor group and
// waits there for rank 1, which has come to a call of its data group and waits there for rank 0.
// Neither call is wrong by itself, and nobody is late; only all of them together tell.
//
// A rank is *blocked* while it does nothing but wait in calls for other ranks to come. A set of
// blocked ranks each of whose calls waits for one of the set never goes on, whatever the others do.
// That holds if all have been so at one moment, with nothing on its way between them: whoever asks
// sees to it that he knows of calls for longer than news take.
#ifndef MEGATRON_COMM_DEADLOCK_H_
#define MEGATRON_COMM_DEADLOCK_H_

#include <time.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace megatron {

// A call that a thread of a rank is in.
struct WaitingCall {
  uint64_t serial = 0;       // no other call of the rank has it
  clockid_t thread = {};     // the processor clock of the thread; known in its process alone
  std::vector<int> awaited;  // world ranks that have not come; none: it goes on by itself
  std::string what;  // "rank 1 of tp-0 (world rank 3) was in call 17, all-reduce(sum) of ..."
};

// By world rank, of each blocked one.
using WaitingRanks = std::map<int, std::vector<WaitingCall>>;

bool SameCalls(const std::vector<WaitingCall>& a, const std::vector<WaitingCall>& b);
bool SameRanksAndCalls(const WaitingRanks& a, const WaitingRanks& b);

// Such a set, if there is one: a small one, as a ring of two or three.
WaitingRanks FindDeadlock(const WaitingRanks& blocked);

// "ranks wait for each other: rank 0 of tp-0 (world rank 0) was in call 17, ..., for world rank 1;
// ..."
std::string DescribeDeadlock(const WaitingRanks& deadlock);

// For the news of a rank about itself. Of many awaited ranks only the first are told.
std::string EncodeWaitingCalls(const std::vector<WaitingCall>& calls);
absl::StatusOr<std::vector<WaitingCall>> DecodeWaitingCalls(absl::string_view bytes);

}  // namespace megatron

#endif  // MEGATRON_COMM_DEADLOCK_H_
