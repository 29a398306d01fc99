// A rank's stage, which reports its passes to those who watch the rank.
#ifndef MEGATRON_TRAIN_FAILURE_REPORTING_STAGE_H_
#define MEGATRON_TRAIN_FAILURE_REPORTING_STAGE_H_

#include "absl/types/span.h"
#include "megatron/comm/watch/rank_progress.h"
#include "megatron/pipeline/stage_wrapper.h"

namespace megatron {

// A stage that reports each forward and backward pass to the rank's progress. Both arguments must
// outlive it.
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

#endif  // MEGATRON_TRAIN_FAILURE_REPORTING_STAGE_H_
