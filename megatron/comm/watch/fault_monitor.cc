#include "megatron/comm/watch/fault_monitor.h"

#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "megatron/base/host_name.h"
#include "megatron/base/steady_now.h"
#include "megatron/base/thread_stacks.h"
#include "megatron/comm/watch/processor_time.h"

namespace megatron {
namespace {

constexpr absl::Duration kLook = absl::Milliseconds(50);
constexpr absl::Duration kStackPatience = absl::Milliseconds(100);

std::string Describe(int rank) { return absl::StrCat("rank ", rank, " on ", HostName()); }

std::string Describe(const RankProgress& progress) {
  return absl::StrCat("iteration ", progress.iteration(), ", ", Name(progress.phase()));
}

std::string StacksText() {
  std::string text;
  for (const ThreadStack& stack : AllThreadStacks(kStackPatience)) {
    absl::StrAppend(&text, "  thread ", stack.id, " (", stack.name, ")",
                    stack.frames.empty() ? " does not answer: it is stopped\n" : "\n");
    for (const std::string& frame : stack.frames) absl::StrAppend(&text, "    ", frame, "\n");
  }
  return text;
}

// Writes the text in one piece, so that nothing comes between, and without stdio, whose lock a
// stopped thread may hold.
void Print(absl::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(STDERR_FILENO, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return;
    text.remove_prefix(written);
  }
}

// What each rank was at.
std::string StatesText(const std::map<int, std::string>& states, const World& world) {
  std::string text = "what the ranks were at:\n";
  for (const auto& [rank, state] : states) absl::StrAppend(&text, state);
  for (int rank = 0; world.spans_processes() && rank < world.size(); ++rank) {
    if (states.count(rank) == 0) absl::StrAppend(&text, "rank ", rank, " could not be asked\n");
  }
  return text;
}

}  // namespace

FaultMonitor::Watch::Watch(FaultMonitor* monitor, int rank, const RankProgress* progress)
    : monitor_(*monitor), rank_(rank) {
  Rank watched;
  watched.progress = progress;
  watched.moved = watched.worked = watched.own_worked = SteadyNow();
  pthread_getcpuclockid(pthread_self(), &watched.clock);
  absl::MutexLock lock(&monitor_.mutex_);
  monitor_.ranks_[rank] = watched;
}

FaultMonitor::Watch::~Watch() {
  absl::MutexLock lock(&monitor_.mutex_);
  monitor_.ranks_.erase(rank_);
}

FaultMonitor::FaultMonitor(World* world, const FaultMonitorOptions& options)
    : world_(*world), options_(options), deadlock_watch_(world, options.stuck_after / 2) {
  world_.SetFailureHook([this](const absl::Status& reason) { Remember(reason); });
  thread_ = std::thread([this] { Run(); });
}

FaultMonitor::~FaultMonitor() {
  world_.SetFailureHook(nullptr);
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
  }
  thread_.join();
}

bool FaultMonitor::StoppedWithin(absl::Duration time) {
  absl::MutexLock lock(&mutex_);
  return mutex_.AwaitWithTimeout(absl::Condition(&stop_), time);
}

bool FaultMonitor::WaitUntilReported() {
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(&reported_));
  return !left_to_aborter_;
}

std::string FaultMonitor::withheld() {
  absl::MutexLock lock(&mutex_);
  return withheld_;
}

void FaultMonitor::Run() {
  while (world_.status().ok()) {
    if (StoppedWithin(kLook)) return;
    absl::Status found = world_.Overdue();
    if (found.ok() && options_.stuck_after > absl::ZeroDuration()) found = Look();
    is_own_ = !found.ok();
    if (is_own_) world_.Abort(found);
  }
  const absl::Status reason = world_.status();
  Report(reason);
  if (!StoppedWithin(GoesOn(reason) ? options_.grace_without_others : options_.grace))
    EndProcess(reason);
}

bool FaultMonitor::GoesOn(const absl::Status& reason) const {
  return !is_own_ && options_.grace_without_others > absl::ZeroDuration() &&
         (absl::IsUnavailable(reason) || absl::IsDeadlineExceeded(reason));
}

// It does not unwind: what holds the ranks up must not hold up the end of the process.
void FaultMonitor::EndProcess(const absl::Status& reason) {
  ProcessEnd end = {EXIT_FAILURE, std::string(reason.message())};
  if (options_.process_end) end = options_.process_end(reason);
  absl::MutexLock lock(&mutex_);
  if (left_to_aborter_) Print(absl::StrCat("error: ", end.message, "\n"));
  _exit(end.exit_code);
}

void FaultMonitor::Update(Rank* rank, const Calls& calls, absl::Duration away) const {
  const absl::Time now = SteadyNow();
  const absl::Duration own_used = ProcessorTime(rank->clock);
  const absl::Duration used = own_used + calls.processor_time;
  const uint64_t moves = rank->progress->moves();
  for (absl::Time* last : {&rank->moved, &rank->worked, &rank->own_worked})
    *last = std::min(now, *last + away);
  if (own_used != rank->own_used) rank->own_worked = now;
  rank->own_used = own_used;
  if (moves != rank->moves || rank->progress->waits_externally()) {
    rank->moved = rank->worked = rank->own_worked = now;
  } else if (used != rank->used) {
    rank->worked = now;
  }
  rank->used = used;
  rank->moves = moves;
}

absl::Duration FaultMonitor::LateAfter(const Rank& rank) const {
  const absl::Duration longest = rank.progress->longest(rank.progress->phase());
  if (options_.late_factor == 0 || longest == absl::ZeroDuration()) return absl::InfiniteDuration();
  return std::max(options_.stuck_after, options_.late_factor * longest);
}

std::map<int, FaultMonitor::Calls> FaultMonitor::CallsOfRanks() {
  std::map<int, Calls> calls;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [number, rank] : ranks_) calls[number];
  }
  for (auto& [number, of_rank] : calls) {
    of_rank = {world_.CallersProcessorTime(number), world_.InCall(number)};
  }
  return calls;
}

absl::Status FaultMonitor::Look() {
  const absl::Status found = LookAtRanks();
  return found.ok() ? deadlock_watch_.Look(RestingRanks()) : found;
}

std::vector<RestingRank> FaultMonitor::RestingRanks() {
  const absl::Time now = SteadyNow();
  std::vector<RestingRank> resting;
  absl::MutexLock lock(&mutex_);
  for (const auto& [number, rank] : ranks_) {
    if (now < rank.moved + options_.stuck_after / 4) continue;
    resting.push_back({number, rank.clock, now >= rank.own_worked + options_.stuck_after});
  }
  return resting;
}

absl::Status FaultMonitor::LookAtRanks() {
  const absl::Time now = SteadyNow();
  // The whole process was stopped, or the machine has too much to do: its ranks have had no more
  // time than this thread.
  absl::Duration away = std::max(absl::ZeroDuration(), now - last_look_ - kLook);
  if (away < kLook) away = absl::ZeroDuration();
  last_look_ = now;
  std::map<int, Calls> calls = CallsOfRanks();
  // The rank that has been stuck or late for longest is named: others may wait for what it holds.
  absl::Time stuck_since = absl::InfiniteFuture(), late_since = absl::InfiniteFuture();
  std::string stuck, late;  // described while the rank is registered
  int late_rank = 0;
  {
    absl::MutexLock lock(&mutex_);
    for (auto& [number, rank] : ranks_) {
      Update(&rank, calls[number], away);
      if (now >= rank.worked + options_.stuck_after) {
        if (rank.worked >= stuck_since) continue;
        stuck_since = rank.worked;
        stuck = absl::StrCat(Describe(number), " is stuck: nothing has moved for ",
                             absl::FormatDuration(options_.stuck_after), " in ",
                             Describe(*rank.progress));
      } else if (!calls[number].any && now < rank.worked + options_.stuck_after / 2 &&
                 now > rank.moved + LateAfter(rank)) {  // a rank that sleeps will be stuck
        if (rank.moved >= late_since) continue;
        late_since = rank.moved;
        late_rank = number;
        late = absl::StrCat(Describe(number), " computes without end: others wait for it, and for ",
                            absl::FormatDuration(LateAfter(rank)), ", at least ",
                            options_.late_factor, " times longer than ever before, it has been in ",
                            Describe(*rank.progress));
      }
    }
  }
  if (!stuck.empty()) return absl::DeadlineExceededError(stuck);
  if (!late.empty() && world_.IsAwaited(late_rank)) return absl::DeadlineExceededError(late);
  return absl::OkStatus();
}

void FaultMonitor::Remember(const absl::Status& reason) {
  std::string stacks;
  if (reason.code() != absl::StatusCode::kAborted) stacks = StacksText();
  absl::MutexLock lock(&mutex_);
  stacks_ = std::move(stacks);
  if (ranks_.empty()) {
    headings_[0] = absl::StrCat("process ", getpid(), " on ", HostName(), ": starting\n");
  }
  for (const auto& [number, rank] : ranks_) {
    headings_[number] = absl::StrCat(Describe(number), ", process ", getpid(), ": ",
                                     Describe(*rank.progress), "\n");
    iteration_ = std::max(iteration_, rank.progress->iteration());
  }
}

std::string FaultMonitor::OwnState() {
  std::map<int, std::string> headings;
  std::string stacks;
  {
    absl::MutexLock lock(&mutex_);
    headings = headings_;
    stacks = stacks_;
  }
  std::string text;
  for (const auto& [number, heading] : headings) {
    absl::StrAppend(&text, heading);
    std::vector<std::string> lines = world_.CallsAtFailure(number);
    if (options_.device_calls) {
      for (std::string& line : options_.device_calls(number)) lines.push_back(std::move(line));
    }
    for (const std::string& line : lines) absl::StrAppend(&text, "  ", line, "\n");
  }
  return text + stacks;
}

void FaultMonitor::TellReported(const absl::Status& reason) {
  if (!options_.on_report) return;
  int64_t iteration;
  {
    absl::MutexLock lock(&mutex_);
    iteration = iteration_;
  }
  options_.on_report(reason, iteration);
}

void FaultMonitor::Report(const absl::Status& reason) {
  const bool aborted = reason.code() == absl::StatusCode::kAborted;
  const bool left_to_aborter = aborted && !world_.spans_processes();
  if (!left_to_aborter) {
    const auto states =
        world_.GatherStates(aborted ? "" : OwnState(), SteadyNow() + options_.gather_time);
    const bool brief = GoesOn(reason);
    std::string text, rest;
    if (states.has_value()) {
      text = absl::StrCat("error: ", reason.message(), "\n");
      if (!aborted) (brief ? rest : text) += StatesText(*states, world_);
    } else if (is_own_ && options_.grace_without_others > absl::ZeroDuration()) {
      text = OwnState();  // nobody else prints it
    }
    Print(text);
    if (states.has_value()) TellReported(reason);
    absl::MutexLock lock(&mutex_);
    withheld_ = std::move(rest);
  }
  absl::MutexLock lock(&mutex_);
  left_to_aborter_ = left_to_aborter;
  reported_ = true;
}

}  // namespace megatron
