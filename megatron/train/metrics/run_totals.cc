#include "megatron/train/metrics/run_totals.h"

namespace megatron {

void RunTotals::Add(const StepMetrics& step) {
  if (step.skipped) {
    ++skipped_at_end_;
  } else {
    loss_ = step.loss;
    skipped_at_end_ = 0;
  }
  if (++steps_ == 2) seconds_ = tokens_ = mfu_ = 0;
  const double seconds = step.speed.elapsed_ms * 1e-3;
  seconds_ += seconds;
  tokens_ += step.speed.tokens_per_second * seconds;
  has_mfu_ = step.speed.mfu.has_value();
  mfu_ += step.speed.mfu.value_or(0) * seconds;
}

void RunTotals::Add(const EvaluationMetrics& evaluation) {
  (evaluation.on_test_set ? test_loss_ : validation_loss_) = evaluation.loss;
}

}  // namespace megatron
