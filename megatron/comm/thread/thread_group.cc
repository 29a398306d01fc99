#include "megatron/comm/thread/thread_group.h"

#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "glog/logging.h"
#include "megatron/base/patient_lock.h"
#include "megatron/base/steady_now.h"
#include "megatron/comm/watch/processor_time.h"

namespace megatron {
namespace {

// Waiting threads wake up this often, so that those who watch them see that they live.
constexpr absl::Duration kLongestWait = absl::Milliseconds(250);
// A lock that is held for longer is held by a thread that hangs. So is the lock of a thread that
// reports a failure for longer.
constexpr absl::Duration kLockPatience = absl::Milliseconds(100);
constexpr absl::Duration kReportPatience = absl::Seconds(3);
// The time after the deadline in which a waiting thread reports it itself.
constexpr absl::Duration kOverduePatience = absl::Seconds(1);

}  // namespace

void ThreadWorldState::Register(const std::shared_ptr<ThreadGroup>& group) {
  absl::MutexLock lock(&mutex_);
  groups_.push_back(group);
}

void ThreadWorldState::Fail(const absl::Status& status) {
  const PatientLock lock(&fail_mutex_, kReportPatience);
  if (failed()) return;
  if (lock.held()) {
    if (failure_hook_) failure_hook_(status);
    for (const auto& group : Groups()) {
      for (auto& waiting : group->DescribeWaiting())
        calls_at_failure_.push_back(std::move(waiting));
    }
    calls_at_failure_known_.store(true, std::memory_order_release);
  }
  failure_.Set(status);
  WakeAll();
}

void ThreadWorldState::Leave(int world_rank) {
  left_[world_rank].store(true, std::memory_order_release);
  WakeAll();
}

void ThreadWorldState::SetFailureHook(FailureHook hook) {
  absl::MutexLock lock(&fail_mutex_);
  failure_hook_ = std::move(hook);
}

std::vector<std::string> ThreadWorldState::CallsAtFailure(int world_rank) const {
  std::vector<std::string> lines;
  if (!calls_at_failure_known_.load(std::memory_order_acquire)) return lines;
  for (const auto& [rank, line] : calls_at_failure_) {
    if (rank == world_rank) lines.push_back(line);
  }
  return lines;
}

absl::Duration ThreadWorldState::CallersProcessorTime(int world_rank) const {
  absl::Duration total;
  for (const auto& group : Groups()) total += group->CallerProcessorTime(world_rank);
  return total;
}

bool ThreadWorldState::InCall(int world_rank) const {
  const auto groups = Groups();
  return std::any_of(groups.begin(), groups.end(),
                     [&](const auto& group) { return group->InCall(world_rank); });
}

bool ThreadWorldState::IsAwaited(int world_rank) const {
  const auto groups = Groups();
  return std::any_of(groups.begin(), groups.end(),
                     [&](const auto& group) { return group->IsAwaited(world_rank); });
}

std::vector<WaitingCall> ThreadWorldState::WaitingCalls(int world_rank) const {
  std::vector<WaitingCall> calls;
  for (const auto& group : Groups()) {
    if (auto call = group->WaitingCallOf(world_rank)) calls.push_back(*std::move(call));
  }
  return calls;
}

absl::Status ThreadWorldState::Overdue() const {
  for (const auto& group : Groups()) {
    absl::Status overdue = group->Overdue();
    if (!overdue.ok()) return overdue;
  }
  return absl::OkStatus();
}

std::vector<std::shared_ptr<ThreadGroup>> ThreadWorldState::Groups() const {
  std::vector<std::shared_ptr<ThreadGroup>> groups;
  const PatientLock lock(&mutex_, kLockPatience);
  if (!lock.held()) return groups;
  for (const auto& weak : groups_) {
    if (std::shared_ptr<ThreadGroup> group = weak.lock()) groups.push_back(std::move(group));
  }
  return groups;
}

void ThreadWorldState::WakeAll() {
  for (const auto& group : Groups()) group->Wake();
}

ThreadGroup::ThreadGroup(std::string name, std::vector<int> world_ranks,
                         std::shared_ptr<ThreadWorldState> world)
    : name_(std::move(name)),
      world_ranks_(std::move(world_ranks)),
      world_(std::move(world)),
      seats_(world_ranks_.size()),
      channels_(world_ranks_.size() * world_ranks_.size()) {}

// A thread may just miss the signal if the lock is not held; then it looks after kLongestWait.
void ThreadGroup::Wake() {
  const PatientLock lock(&mutex_, kLockPatience);
  changed_.SignalAll();
}

const ThreadGroup::Seat* ThreadGroup::SeatOf(int world_rank) const {
  const auto found = std::find(world_ranks_.begin(), world_ranks_.end(), world_rank);
  return found == world_ranks_.end() ? nullptr : &seats_[found - world_ranks_.begin()];
}

void ThreadGroup::Enter(Seat* seat) {
  clockid_t clock = {};
  pthread_getcpuclockid(pthread_self(), &clock);
  seat->clock = clock;
  seat->waits_since = absl::ToUnixNanos(SteadyNow());
  seat->waits_in = Place::kEntering;
}

// Reads atomics only.
absl::Status ThreadGroup::Overdue() const {
  const absl::Time since = SteadyNow() - world_->deadline() - kOverduePatience;
  Ranks entering, waiting;
  for (int rank = 0; rank < size(); ++rank) {
    const Place place = seats_[rank].waits_in;
    if (place == Place::kNone || absl::FromUnixNanos(seats_[rank].waits_since) > since) continue;
    (place == Place::kEntering ? entering : waiting).push_back(rank);
  }
  const std::string after = absl::StrCat("after ", absl::FormatDuration(world_->deadline()));
  if (!entering.empty()) {
    return absl::DeadlineExceededError(
        absl::StrCat("somebody hangs with the lock of ", name_, " in hand: ", after,
                     " still at the beginning of a call: ", DescribeAll(entering)));
  }
  if (waiting.empty()) return absl::OkStatus();
  return absl::DeadlineExceededError(absl::StrCat(Describe(waiting[0]), ": ", after, " still in ",
                                                  WaitingText(seats_[waiting[0]], false)));
}

bool ThreadGroup::InCall(int world_rank) const {
  const Seat* const seat = SeatOf(world_rank);
  return seat != nullptr && seat->waits_in != Place::kNone;
}

absl::Duration ThreadGroup::CallerProcessorTime(int world_rank) const {
  return InCall(world_rank) ? ProcessorTime(SeatOf(world_rank)->clock) : absl::ZeroDuration();
}

bool ThreadGroup::IsAwaited(int world_rank) {
  const Seat* const mine = SeatOf(world_rank);
  if (mine == nullptr) return false;
  const int rank = static_cast<int>(mine - seats_.data());
  const PatientLock lock(&mutex_, kLockPatience);
  return lock.held() && std::any_of(seats_.begin(), seats_.end(), [&](const Seat& seat) {
           if (seat.waits_in == Place::kArriving) return mine->arrivals < seat.arrivals;
           return seat.waits_in == Place::kExchanging &&
                  std::count(seat.exchanges_with->begin(), seat.exchanges_with->end(), rank) > 0;
         });
}

std::string ThreadGroup::WaitingText(const Seat& seat, bool all) const {
  const Place place = seat.waits_in;
  if (place == Place::kNone) return "";
  if (place == Place::kEntering) return "the beginning of a call";
  if (place == Place::kExchanging) {
    return all ? absl::StrCat("an exchange; awaited: ", DescribeAll(*seat.exchanges_with))
               : "an exchange";
  }
  const Ranks awaited =
      place == Place::kArriving ? Missing(seat.arrivals) : Staying(seat.departures);
  return absl::StrCat("call ", seat.arrivals.load(),
                      all ? absl::StrCat(", ", seat.call->Describe()) : "",
                      awaited.empty() ? ", which all ranks have entered"
                                      : absl::StrCat("; awaited: ", DescribeAll(awaited)));
}

std::vector<std::pair<int, std::string>> ThreadGroup::DescribeWaiting() {
  const PatientLock lock(&mutex_, kLockPatience);
  std::vector<std::pair<int, std::string>> lines;
  for (int rank = 0; rank < size(); ++rank) {
    const std::string what = WaitingText(seats_[rank], lock.held());
    if (what.empty()) continue;
    lines.emplace_back(world_ranks_[rank],
                       absl::StrCat(Describe(rank), " was in ", what,
                                    lock.held() ? "" : "; who holds the group's lock hangs"));
  }
  return lines;
}

std::string ThreadGroup::Describe(int rank) const {
  return absl::StrCat("rank ", rank, " of ", name_, " (world rank ", world_ranks_[rank], ")");
}

std::string ThreadGroup::DescribeAll(absl::Span<const int> ranks) const {
  return absl::StrJoin(
      ranks, ", ", [this](std::string* out, int rank) { absl::StrAppend(out, Describe(rank)); });
}

ThreadGroup::Ranks ThreadGroup::Missing(uint64_t arrivals) const {
  Ranks missing;
  for (int rank = 0; rank < size(); ++rank) {
    if (seats_[rank].arrivals < arrivals) missing.push_back(rank);
  }
  return missing;
}

ThreadGroup::Ranks ThreadGroup::Staying(uint64_t departures) const {
  Ranks staying;
  for (int rank = 0; rank < size(); ++rank) {
    if (seats_[rank].departures < departures) staying.push_back(rank);
  }
  return staying;
}

absl::Status ThreadGroup::WaitFor(absl::Span<const int> awaited, absl::Time deadline) {
  if (world_->failed()) return world_->status();
  for (int rank : awaited) {
    if (world_->has_left(world_ranks_[rank])) {
      return absl::UnavailableError(absl::StrCat(Describe(rank), " has left"));
    }
  }
  if (SteadyNow() < deadline) {
    changed_.WaitWithTimeout(&mutex_, std::min(deadline - SteadyNow(), kLongestWait));
    return absl::OkStatus();  // also at the deadline: some of `awaited` may have come since
  }
  return absl::DeadlineExceededError(absl::StrCat("after ",
                                                  absl::FormatDuration(world_->deadline()),
                                                  " still missing: ", DescribeAll(awaited)));
}

bool ThreadGroup::Arrive(int rank, const CollectiveCall& call) {
  absl::Status failure;
  Seat& seat = seats_[rank];
  Enter(&seat);
  {
    absl::MutexLock lock(&mutex_);
    seat.waits_in = Place::kNone;
    // Ranks that gave up did so under this mutex after a failure, so whoever comes later sees it:
    // a meeting is complete only if every rank is really there.
    if (world_->failed()) return false;
    seat.call = &call;
    const uint64_t complete = ++seat.arrivals * size();
    if (++arrived_ == complete) changed_.SignalAll();
    const absl::Time deadline = SteadyNow() + world_->deadline();
    seat.waits_in = Place::kArriving;
    while (arrived_ < complete && failure.ok()) {
      failure = WaitFor(Missing(seat.arrivals), deadline);
    }
    if (arrived_ >= complete) {
      seat.waits_in = Place::kNone;
      return true;
    }
    failure =
        absl::Status(failure.code(), absl::StrCat(Describe(rank), ", call ", seat.arrivals.load(),
                                                  ", ", call.Describe(), ": ", failure.message()));
  }
  world_->Fail(failure);
  absl::MutexLock lock(&mutex_);
  seat.waits_in = Place::kNone;
  return false;
}

void ThreadGroup::Depart(int rank) {
  Seat& seat = seats_[rank];
  Enter(&seat);
  absl::MutexLock lock(&mutex_);
  ++seat.departures;
  seat.waits_in = Place::kDeparting;
  const uint64_t complete = (departed_ / size() + 1) * size();
  if (++departed_ == complete) changed_.SignalAll();
  while (departed_ < complete) changed_.WaitWithTimeout(&mutex_, kLongestWait);
  seat.waits_in = Place::kNone;
}

// One rank's side of an exchange. It runs under the group's mutex except while it copies.
class ThreadGroup::ExchangeProgress {
 public:
  ExchangeProgress(ThreadGroup* group, int rank, absl::Span<const Transfer> sends,
                   absl::Span<const Transfer> receives)
      : group_(*group),
        rank_(rank),
        sends_(sends),
        receives_(receives),
        sent_(sends.size(), kWaiting),
        received_(receives.size(), kWaiting) {}

  // Posts and receives all messages that it can without waiting.
  absl::Status Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(group_.mutex_) {
    AdvanceSends();
    for (size_t i = 0; i < receives_.size();) {
      if (!CanReceive(i)) {
        ++i;
        continue;
      }
      if (absl::Status status = Receive(i); !status.ok()) return status;
      i = 0;  // the mutex was released: an earlier message may have come, and goes first
    }
    AdvanceSends();
    return absl::OkStatus();
  }

  // Returns the peers of the messages that are not done.
  Ranks Awaited() const {
    Ranks peers;
    for (size_t i = 0; i < sends_.size(); ++i) {
      if (sent_[i] != kDone) peers.push_back(sends_[i].peer);
    }
    for (size_t i = 0; i < receives_.size(); ++i) {
      if (received_[i] != kDone) peers.push_back(receives_[i].peer);
    }
    return peers;
  }

  // Returns whether a message that it waits for has arrived.
  bool CanAdvance() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(group_.mutex_) {
    for (size_t i = 0; i < sends_.size(); ++i) {
      if (sent_[i] != kDone && group_.channel(rank_, sends_[i].peer).message == nullptr)
        return true;
    }
    for (size_t i = 0; i < receives_.size(); ++i) {
      if (CanReceive(i)) return true;
    }
    return false;
  }

  // Takes back the messages that no rank reads, and waits for the readers of the others to finish.
  void Withdraw() ABSL_EXCLUSIVE_LOCKS_REQUIRED(group_.mutex_) {
    for (size_t i = 0; i < sends_.size(); ++i) {
      if (sent_[i] != kPosted) continue;
      Channel& channel = group_.channel(rank_, sends_[i].peer);
      while (channel.claimed) group_.changed_.Wait(&group_.mutex_);
      channel.message = nullptr;
    }
  }

 private:
  enum State : uint8_t { kWaiting, kPosted, kDone };

  void AdvanceSends() ABSL_EXCLUSIVE_LOCKS_REQUIRED(group_.mutex_) {
    for (size_t i = 0; i < sends_.size(); ++i) {
      Channel& channel = group_.channel(rank_, sends_[i].peer);
      if (channel.message != nullptr) continue;
      if (sent_[i] == kPosted) {
        sent_[i] = kDone;
      } else if (sent_[i] == kWaiting) {
        channel.message = &sends_[i].tensor;
        sent_[i] = kPosted;
        group_.changed_.SignalAll();
      }
    }
  }

  bool CanReceive(size_t i) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(group_.mutex_) {
    return received_[i] == kWaiting && FirstWaitingFrom(receives_[i].peer) == i &&
           group_.channel(receives_[i].peer, rank_).message != nullptr;
  }

  size_t FirstWaitingFrom(int peer) const {
    size_t i = 0;
    while (receives_[i].peer != peer || received_[i] != kWaiting) ++i;
    return i;
  }

  absl::Status Receive(size_t i) ABSL_EXCLUSIVE_LOCKS_REQUIRED(group_.mutex_) {
    const Transfer& receive = receives_[i];
    Channel& channel = group_.channel(receive.peer, rank_);
    const Tensor& message = *channel.message;
    if (message.dtype() != receive.tensor.dtype() || message.shape() != receive.tensor.shape()) {
      return absl::FailedPreconditionError(
          absl::StrCat(group_.Describe(receive.peer), " sends ", ToText(message), " but ",
                       group_.Describe(rank_), " receives ", ToText(receive.tensor)));
    }
    channel.claimed = true;
    group_.mutex_.Unlock();
    if (message.bytes() > 0) std::memcpy(receive.tensor.raw(), message.raw(), message.bytes());
    group_.mutex_.Lock();
    channel.claimed = false;
    channel.message = nullptr;
    received_[i] = kDone;
    group_.changed_.SignalAll();
    return absl::OkStatus();
  }

  static std::string ToText(const Tensor& tensor) {
    return absl::StrCat(Name(tensor.dtype()), "[", absl::StrJoin(tensor.shape(), ", "), "]");
  }

  ThreadGroup& group_;
  const int rank_;
  const absl::Span<const Transfer> sends_, receives_;
  absl::InlinedVector<State, 16> sent_, received_;
};

// A call that can continue awaits no rank, even if its thread has not noticed yet. Neither does a
// call whose group's lock cannot be taken.
std::optional<WaitingCall> ThreadGroup::WaitingCallOf(int world_rank) {
  const Seat* const seat = SeatOf(world_rank);
  if (seat == nullptr || seat->waits_in == Place::kNone) return std::nullopt;
  WaitingCall call;
  call.serial = seat->waits_since;
  call.thread = seat->clock;
  const PatientLock lock(&mutex_, kLockPatience);
  if (!lock.held()) return call;
  Ranks awaited;
  if (seat->waits_in == Place::kArriving) awaited = Missing(seat->arrivals);
  if (seat->waits_in == Place::kExchanging && !seat->exchange->CanAdvance()) {
    awaited = *seat->exchanges_with;
  }
  for (const int rank : awaited) call.awaited.push_back(world_ranks_[rank]);
  if (!awaited.empty()) {
    call.what = absl::StrCat(
        Describe(static_cast<int>(seat - seats_.data())), " was in ",
        seat->waits_in == Place::kExchanging
            ? "an exchange"
            : absl::StrCat("call ", seat->arrivals.load(), ", ", seat->call->Describe()));
  }
  return call;
}

void ThreadGroup::Exchange(int rank, absl::Span<const Transfer> sends,
                           absl::Span<const Transfer> receives) {
  absl::Status failure;
  Seat& seat = seats_[rank];
  Enter(&seat);
  {
    absl::MutexLock lock(&mutex_);
    seat.waits_in = Place::kNone;
    if (world_->failed()) return;
    ExchangeProgress progress(this, rank, sends, receives);
    const absl::Time deadline = SteadyNow() + world_->deadline();
    while (failure.ok()) {
      failure = progress.Advance();
      if (!failure.ok()) break;
      const Ranks awaited = progress.Awaited();
      if (awaited.empty()) return;
      seat.exchanges_with = &awaited;
      seat.exchange = &progress;
      seat.waits_in = Place::kExchanging;
      failure = WaitFor(awaited, deadline);
      seat.waits_in = Place::kNone;
    }
    progress.Withdraw();
  }
  world_->Fail(absl::Status(failure.code(),
                            absl::StrCat(Describe(rank), ", exchange: ", failure.message())));
}

const std::vector<std::shared_ptr<ThreadGroup>>* ThreadGroup::SplitInto(
    int rank, const std::vector<std::vector<int>>& partition, const std::string& name) {
  absl::Status failure;
  {
    absl::MutexLock lock(&mutex_);
    const size_t number = seats_[rank].splits++;
    if (number == splits_.size()) {
      splits_.push_back({partition, name, {}});
      for (size_t i = 0; i < partition.size(); ++i) {
        std::vector<int> world_ranks;
        for (int member : partition[i]) world_ranks.push_back(world_ranks_[member]);
        auto group = std::make_shared<ThreadGroup>(absl::StrCat(name, "-", i),
                                                   std::move(world_ranks), world_);
        world_->Register(group);
        splits_.back().groups.push_back(std::move(group));
      }
    }
    SplitRecord& split = splits_[number];
    if (split.partition == partition && split.name == name) return &split.groups;
    failure = absl::FailedPreconditionError(absl::StrCat(
        Describe(rank), " splits the group into ", name, " where another rank splits it into ",
        split.name, split.name == name ? ", by another partition" : ""));
  }
  world_->Fail(failure);
  return nullptr;
}

}  // namespace megatron
