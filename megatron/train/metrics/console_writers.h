// The metrics writers that print: the log line of each logged step with the block of each
// evaluation, and the progress bar.
#ifndef MEGATRON_TRAIN_METRICS_CONSOLE_WRITERS_H_
#define MEGATRON_TRAIN_METRICS_CONSOLE_WRITERS_H_

#include "absl/status/status.h"
#include "megatron/train/metrics/metrics_writer.h"
#include "megatron/train/metrics/rank_console.h"

namespace megatron {

// The console must outlive its writers.
class LogLineWriter : public MetricsWriter {
 public:
  explicit LogLineWriter(RankConsole* console) : console_(*console) {}

  absl::Status WriteStep(const StepMetrics& step) override;
  absl::Status WriteEvaluation(const EvaluationMetrics& evaluation) override;

 private:
  RankConsole& console_;
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
