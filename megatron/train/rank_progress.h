// What a rank is at, for whoever watches it from another thread.
#ifndef MEGATRON_TRAIN_RANK_PROGRESS_H_
#define MEGATRON_TRAIN_RANK_PROGRESS_H_

#include <atomic>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "megatron/pipeline/stage.h"

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
};

constexpr const char* Name(Phase phase) {
  constexpr const char* kNames[] = {"start",  "data",     "forward", "backward", "reduce",
                                    "update", "evaluate", "save",    "generate"};
  return kNames[static_cast<int>(phase)];
}

// Threads: the rank writes, any thread reads.
class RankProgress {
 public:
  void Enter(Phase phase) { phase_.store(phase, std::memory_order_relaxed); }
  void SetIteration(int64_t iteration) { iteration_.store(iteration, std::memory_order_relaxed); }

  Phase phase() const { return phase_.load(std::memory_order_relaxed); }
  // The one that is being trained, from 1; 0: none yet.
  int64_t iteration() const { return iteration_.load(std::memory_order_relaxed); }

 private:
  std::atomic<Phase> phase_{Phase::kStart};
  std::atomic<int64_t> iteration_{0};
};

// A stage that says when it goes forward and backward.
class ReportingStage : public Stage {
 public:
  ReportingStage(Stage* stage, RankProgress* progress) : stage_(*stage), progress_(*progress) {}

  std::vector<TensorSpec> InputSpecs(int microbatch, int chunk) const override {
    return stage_.InputSpecs(microbatch, chunk);
  }
  std::vector<TensorSpec> OutputSpecs(int microbatch, int chunk) const override {
    return stage_.OutputSpecs(microbatch, chunk);
  }
  void Forward(const WorkItem& item, absl::Span<const Tensor> inputs,
               absl::Span<const Tensor> outputs, const Stream& stream) override {
    progress_.Enter(Phase::kForward);
    stage_.Forward(item, inputs, outputs, stream);
  }
  void Backward(const WorkItem& item, absl::Span<const Tensor> output_gradients,
                absl::Span<const Tensor> input_gradients, const Stream& stream) override {
    progress_.Enter(Phase::kBackward);
    stage_.Backward(item, output_gradients, input_gradients, stream);
  }
  void BackwardWeight(const WorkItem& item, const Stream& stream) override {
    progress_.Enter(Phase::kBackward);
    stage_.BackwardWeight(item, stream);
  }

 private:
  Stage& stage_;
  RankProgress& progress_;
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_RANK_PROGRESS_H_
