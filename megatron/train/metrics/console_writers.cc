#include "megatron/train/metrics/console_writers.h"

#include "megatron/train/metrics/log_line.h"
#include "megatron/train/metrics/progress_bar.h"

namespace megatron {

absl::Status LogLineWriter::WriteStep(const StepMetrics& step) {
  if (step.interval.has_value()) console_.PrintLine(FormatLogLine(step));
  return absl::OkStatus();
}

absl::Status LogLineWriter::WriteEvaluation(const EvaluationMetrics& evaluation) {
  console_.PrintLine(FormatValidationBlock(evaluation));
  return absl::OkStatus();
}

absl::Status ProgressBarWriter::WriteStep(const StepMetrics& step) {
  Progress progress;
  progress.iteration = step.iteration;
  progress.train_iters = step.train_iters;
  progress.loss = step.total_loss;
  progress.tokens_per_second = step.speed.tokens_per_second;
  progress.time_left = step.speed.time_left;
  console_.ShowProgress(progress);
  return absl::OkStatus();
}

}  // namespace megatron
