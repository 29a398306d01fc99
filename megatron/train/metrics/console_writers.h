// The metrics writers that print: the log line of each logged step with the block of each
// evaluation, and the progress bar.
#ifndef MEGATRON_TRAIN_METRICS_CONSOLE_WRITERS_H_
#define MEGATRON_TRAIN_METRICS_CONSOLE_WRITERS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "megatron/train/metrics/metrics_writer.h"
#include "megatron/train/metrics/rank_console.h"
#include "megatron/train/metrics/timers.h"

namespace megatron {

// The console must outlive its writers.
//
// Below a log line stand the shares of the time, the memory if its peak has risen, and Megatron's
// timers if there are any at that level.
class LogLineWriter : public MetricsWriter {
 public:
  LogLineWriter(RankConsole* console, int timing_log_level, TimerOption timing_log_option)
      : console_(*console), level_(timing_log_level), option_(timing_log_option) {}

  absl::Status WriteStep(const StepMetrics& step) override;
  absl::Status WriteEvaluation(const EvaluationMetrics& evaluation) override;

 private:
  RankConsole& console_;
  const int level_;
  const TimerOption option_;
  int64_t peak_bytes_ = 0;  // those of the last memory line
};

class ProgressBarWriter : public MetricsWriter {
 public:
  explicit ProgressBarWriter(RankConsole* console) : console_(*console) {}

  absl::Status WriteStep(const StepMetrics& step) override;
  absl::Status WriteEvaluation(const EvaluationMetrics&) override { return absl::OkStatus(); }

 private:
  RankConsole& console_;
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_METRICS_CONSOLE_WRITERS_H_
