#include "megatron/comm/watch/deadlock.h"

#include <algorithm>
#include <iterator>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "megatron/comm/socket/wire.h"

namespace megatron {
namespace {

// A rank is in one or two calls at a time, and one blocked rank that a call awaits is enough.
constexpr size_t kMaxCalls = 64;
constexpr size_t kMaxAwaited = 256;
constexpr size_t kMaxTextBytes = 512;
constexpr size_t kMaxTexts = 16;

// Returns the first blocked rank that the call waits for; -1: none.
int FirstBlocked(const WaitingCall& call, const WaitingRanks& blocked) {
  for (const int rank : call.awaited) {
    if (blocked.count(rank) > 0) return rank;
  }
  return -1;
}

bool CanContinue(const std::vector<WaitingCall>& calls, const WaitingRanks& blocked) {
  return calls.empty() || absl::c_any_of(calls, [&](const WaitingCall& call) {
           return FirstBlocked(call, blocked) < 0;
         });
}

// Returns `blocked` without the ranks that continue once others do.
WaitingRanks BlockedForever(WaitingRanks blocked) {
  for (bool changed = true; changed;) {
    changed = false;
    for (auto rank = blocked.begin(); rank != blocked.end();) {
      const bool can_continue = CanContinue(rank->second, blocked);
      rank = can_continue ? blocked.erase(rank) : std::next(rank);
      changed |= can_continue;
    }
  }
  return blocked;
}

}  // namespace

bool SameCalls(const std::vector<WaitingCall>& a, const std::vector<WaitingCall>& b) {
  return absl::c_equal(a, b, [](const WaitingCall& x, const WaitingCall& y) {
    return x.serial == y.serial && x.awaited == y.awaited;
  });
}

bool SameRanksAndCalls(const WaitingRanks& a, const WaitingRanks& b) {
  return absl::c_equal(a, b, [](const auto& x, const auto& y) {
    return x.first == y.first && SameCalls(x.second, y.second);
  });
}

WaitingRanks FindDeadlock(const WaitingRanks& blocked) {
  const WaitingRanks forever = BlockedForever(blocked);
  WaitingRanks deadlock;
  if (forever.empty()) return deadlock;
  // Following the ranks that wait for one another ends in a ring.
  int rank = forever.begin()->first;
  for (size_t step = 0; step < forever.size(); ++step) {
    rank = FirstBlocked(forever.at(rank)[0], forever);
  }
  std::vector<int> members = {rank};
  for (size_t i = 0; i < members.size(); ++i) {
    const std::vector<WaitingCall>& calls = forever.at(members[i]);
    deadlock[members[i]] = calls;
    for (const WaitingCall& call : calls) {
      const int next = FirstBlocked(call, forever);
      if (!absl::c_linear_search(members, next)) members.push_back(next);
    }
  }
  return deadlock;
}

std::string DescribeDeadlock(const WaitingRanks& deadlock) {
  std::vector<std::string> texts;
  for (const auto& [rank, calls] : deadlock) {
    for (const WaitingCall& call : calls) {
      texts.push_back(absl::StrCat(call.what, ", for world rank ", FirstBlocked(call, deadlock)));
    }
  }
  const size_t more = texts.size() - std::min(texts.size(), kMaxTexts);
  texts.resize(texts.size() - more);
  return absl::StrCat("ranks wait for each other: ", absl::StrJoin(texts, "; "),
                      more > 0 ? absl::StrCat("; and ", more, " more") : "");
}

std::string EncodeWaitingCalls(const std::vector<WaitingCall>& calls) {
  WireWriter writer;
  writer.Put(static_cast<uint32_t>(std::min(calls.size(), kMaxCalls)));
  for (size_t i = 0; i < std::min(calls.size(), kMaxCalls); ++i) {
    const WaitingCall& call = calls[i];
    writer.Put(call.serial);
    writer.PutString(absl::string_view(call.what).substr(0, kMaxTextBytes));
    const size_t awaited = std::min(call.awaited.size(), kMaxAwaited);
    writer.Put(static_cast<uint32_t>(awaited));
    for (size_t j = 0; j < awaited; ++j) writer.Put(static_cast<int32_t>(call.awaited[j]));
  }
  return writer.Take();
}

absl::StatusOr<std::vector<WaitingCall>> DecodeWaitingCalls(absl::string_view bytes) {
  WireReader reader(bytes);
  std::vector<WaitingCall> calls;
  const auto count = reader.Get<uint32_t>();
  for (uint32_t i = 0; i < count && i < kMaxCalls && reader.ok(); ++i) {
    WaitingCall call;
    call.serial = reader.Get<uint64_t>();
    call.what = std::string(reader.GetString());
    const auto awaited = reader.Get<uint32_t>();
    for (uint32_t j = 0; j < awaited && j < kMaxAwaited && reader.ok(); ++j) {
      call.awaited.push_back(reader.Get<int32_t>());
    }
    calls.push_back(std::move(call));
  }
  if (!reader.at_end()) return absl::InvalidArgumentError("a message that is no list of calls");
  return calls;
}

}  // namespace megatron
