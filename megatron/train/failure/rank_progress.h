// What a rank is at, for whoever watches it from another thread.
#ifndef MEGATRON_TRAIN_FAILURE_RANK_PROGRESS_H_
#define MEGATRON_TRAIN_FAILURE_RANK_PROGRESS_H_

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "megatron/pipeline/stage_wrapper.h"

namespace megatron {

enum class Phase : int {
  kStart,  // groups, memory, checkpoint
  kData,
  kForward,
  kBackward,
  kReduce,  // gradients
  kUpdate,
  kEvaluate,
  kSave,
  kGenerate,
  kLeave,  // when all is done, for the others to have done so, too
};
constexpr int kNumPhases = static_cast<int>(Phase::kLeave) + 1;

constexpr const char* Name(Phase phase) {
  constexpr const char* kNames[] = {"start",  "data",     "forward", "backward", "reduce",
                                    "update", "evaluate", "save",    "generate", "leave"};
  return kNames[static_cast<int>(phase)];
}

// A rank's work comes in pieces: the forward pass of a micro-batch, an update, a token.
//
// Threads: the rank writes, any thread reads; operations of the outside world may be on any.
class RankProgress {
 public:
  // `listener`, if any, hears of each piece before it begins, on the thread that does it.
  explicit RankProgress(std::function<void(Phase)> listener = nullptr)
      : listener_(std::move(listener)) {}

  // Starting is the first piece, and the only one of its kind.
  void Start() {
    if (listener_) listener_(Phase::kStart);
  }
  // The next piece of work begins.
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

  // As long as it lives, the rank is at something that may take as long as the outside world likes:
  // a file, somebody who reads what is printed.
  class Outside {
   public:
    explicit Outside(RankProgress* progress) : progress_(*progress) { progress_.BeginOutside(); }
    ~Outside() { progress_.EndOutside(); }
    Outside(const Outside&) = delete;
    Outside& operator=(const Outside&) = delete;

   private:
    RankProgress& progress_;
  };

  void BeginOutside() {
    ++outside_;
    ++moves_;
  }
  void EndOutside() {
    ++moves_;
    --outside_;
  }

  Phase phase() const { return phase_.load(std::memory_order_relaxed); }
  // The one that is being trained, from 1; 0: none yet.
  int64_t iteration() const { return iteration_.load(std::memory_order_relaxed); }
  bool outside() const { return outside_.load(std::memory_order_relaxed) > 0; }
  // Changes whenever a piece of work, or something outside, begins or ends.
  uint64_t moves() const { return moves_.load(std::memory_order_relaxed); }
  // The longest that a finished piece of the phase has taken; zero: none is finished.
  absl::Duration longest(Phase phase) const {
    return absl::Nanoseconds(longest_[static_cast<int>(phase)].load(std::memory_order_relaxed));
  }

 private:
  static int64_t Now() {
    return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
  }

  const std::function<void(Phase)> listener_;
  int64_t entered_ = Now();  // the rank's
  std::atomic<Phase> phase_{Phase::kStart};
  std::atomic<int64_t> iteration_{0};
  std::atomic<int> outside_{0};
  std::atomic<uint64_t> moves_{0};
  std::atomic<int64_t> longest_[kNumPhases] = {};
};

// A stage that says when it goes forward and backward.
class ReportingStage : public StageWrapper {
 public:
  ReportingStage(Stage* stage, RankProgress* progress)
      : StageWrapper(stage), progress_(*progress) {}

  void Forward(const WorkItem& item, absl::Span<const Tensor> inputs,
               absl::Span<const Tensor> outputs, const Stream& stream) override {
    progress_.Enter(Phase::kForward);
    inner().Forward(item, inputs, outputs, stream);
  }
  void Backward(const WorkItem& item, absl::Span<const Tensor> output_gradients,
                absl::Span<const Tensor> input_gradients, const Stream& stream) override {
    progress_.Enter(Phase::kBackward);
    inner().Backward(item, output_gradients, input_gradients, stream);
  }
  void BackwardWeight(const WorkItem& item, const Stream& stream) override {
    progress_.Enter(Phase::kBackward);
    inner().BackwardWeight(item, stream);
  }

 private:
  RankProgress& progress_;
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_FAILURE_RANK_PROGRESS_H_
