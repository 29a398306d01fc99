// The progress of a rank, for those who watch it from other threads: its iteration, the phase that it
// is in, and when it last began a piece of work.
#ifndef MEGATRON_COMM_WATCH_RANK_PROGRESS_H_
#define MEGATRON_COMM_WATCH_RANK_PROGRESS_H_

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <utility>

#include "absl/time/time.h"

namespace megatron {

enum class Phase : int {
  kStart,  // makes groups, takes memory, reads the checkpoint
  kData,
  kForward,
  kBackward,
  kReduce,  // reduces gradients
  kUpdate,
  kEvaluate,
  kSave,
  kGenerate,
  kLeave,  // is done and waits for the other ranks
};
constexpr int kNumPhases = static_cast<int>(Phase::kLeave) + 1;

constexpr const char* Name(Phase phase) {
  constexpr const char* kNames[] = {"start",  "data",     "forward", "backward", "reduce",
                                    "update", "evaluate", "save",    "generate", "leave"};
  return kNames[static_cast<int>(phase)];
}

// A rank's work comes in pieces: the forward pass of a micro-batch, an update, a token.
//
// Threads: the rank writes, any thread reads. An ExternalWait may be on any thread.
class RankProgress {
 public:
  // `listener`, unless null, is called before each piece begins, on the thread that does it.
  explicit RankProgress(std::function<void(Phase)> listener = nullptr)
      : listener_(std::move(listener)) {}

  // Reports the start, which is the first piece and the only one of its phase.
  void Start() {
    if (listener_) listener_(Phase::kStart);
  }
  // Reports that the next piece of work begins.
  void Enter(Phase phase) {
    const int64_t now = Now();
    std::atomic<int64_t>& longest = longest_[static_cast<int>(this->phase())];
    longest.store(std::max(longest.load(std::memory_order_relaxed), now - entered_),
                  std::memory_order_relaxed);
    entered_ = now;
    phase_.store(phase, std::memory_order_relaxed);
    moves_.fetch_add(1, std::memory_order_relaxed);
    if (listener_) listener_(phase);
  }
  void SetIteration(int64_t iteration) { iteration_.store(iteration, std::memory_order_relaxed); }

  // As long as it lives, the rank waits for something outside the job that may take any time: a
  // file, or the reader of what is printed.
  class ExternalWait {
   public:
    explicit ExternalWait(RankProgress* progress) : progress_(*progress) {
      progress_.BeginExternalWait();
    }
    ~ExternalWait() { progress_.EndExternalWait(); }
    ExternalWait(const ExternalWait&) = delete;
    ExternalWait& operator=(const ExternalWait&) = delete;

   private:
    RankProgress& progress_;
  };

  void BeginExternalWait() {
    ++external_waits_;
    ++moves_;
  }
  void EndExternalWait() {
    ++moves_;
    --external_waits_;
  }

  Phase phase() const { return phase_.load(std::memory_order_relaxed); }
  // The iteration that is being trained, from 1; 0: none yet.
  int64_t iteration() const { return iteration_.load(std::memory_order_relaxed); }
  bool waits_externally() const { return external_waits_.load(std::memory_order_relaxed) > 0; }
  // Changes whenever a piece of work begins, and whenever an ExternalWait begins or ends.
  uint64_t moves() const { return moves_.load(std::memory_order_relaxed); }
  // The longest time that a finished piece of the phase has taken; zero: none is finished.
  absl::Duration longest(Phase phase) const {
    return absl::Nanoseconds(longest_[static_cast<int>(phase)].load(std::memory_order_relaxed));
  }

 private:
  static int64_t Now() {
    return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
  }

  const std::function<void(Phase)> listener_;
  int64_t entered_ = Now();  // used by the rank's thread only
  std::atomic<Phase> phase_{Phase::kStart};
  std::atomic<int64_t> iteration_{0};
  std::atomic<int> external_waits_{0};
  std::atomic<uint64_t> moves_{0};
  std::atomic<int64_t> longest_[kNumPhases] = {};
};

}  // namespace megatron

#endif  // MEGATRON_COMM_WATCH_RANK_PROGRESS_H_
