#include "megatron/train/metrics/console_writers.h"

#include <string>

#include "megatron/train/metrics/log_line.h"
#include "megatron/train/metrics/progress_bar.h"
#include "megatron/train/metrics/time_report.h"

namespace megatron {

absl::Status LogLineWriter::WriteStep(const StepMetrics& step) {
  if (!step.interval.has_value()) return absl::OkStatus();
  console_.PrintLine(FormatLogLine(step));
  if (step.times == nullptr) return absl::OkStatus();
  console_.PrintLine(FormatTimeLine(*step.times));
  const int64_t peak_bytes = PeakBytes(*step.times);
  if (peak_bytes > peak_bytes_) console_.PrintLine(FormatMemoryLine(*step.times));
  peak_bytes_ = peak_bytes;
  const std::string timers = FormatTimers(*step.times, level_, option_);
  if (!timers.empty()) console_.PrintLine(timers);
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
