// A rank's stage, which reports its passes to those who watch the rank.
#ifndef MEGATRON_TRAIN_FAILURE_REPORTING_STAGE_H_
#define MEGATRON_TRAIN_FAILURE_REPORTING_STAGE_H_

#include <vector>

#include "absl/types/span.h"
#include "megatron/comm/watch/rank_progress.h"
#include "megatron/pipeline/stage.h"

namespace megatron {

// A stage that reports each forward and backward pass to the rank's progress. Both arguments must
// outlive it.
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

#endif  // MEGATRON_TRAIN_FAILURE_REPORTING_STAGE_H_
