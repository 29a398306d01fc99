// Opens the metrics writers of a run. Only this library knows all of them.
#ifndef MEGATRON_TRAIN_METRICS_METRICS_WRITERS_H_
#define MEGATRON_TRAIN_METRICS_METRICS_WRITERS_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "megatron/base/file_system.h"
#include "megatron/train/metrics/metrics_writer.h"
#include "megatron/train/metrics/rank_console.h"
#include "megatron/train/metrics/step_metrics.h"
#include "megatron/train/trainer/run_options.h"

namespace megatron {

// Hands the metrics to each of its writers. Only the first error of all is printed: a full disk
// would give one at every step.
class MetricsWriters {
 public:
  using List = std::vector<std::unique_ptr<MetricsWriter>>;

  // `console` must outlive this.
  MetricsWriters(List writers, RankConsole* console)
      : writers_(std::move(writers)), console_(console) {}

  void WriteStep(const StepMetrics& step);
  void WriteEvaluation(const EvaluationMetrics& evaluation);
  void Sync();

 private:
  void LogFirstError(const absl::Status& status);

  List writers_;
  RankConsole* console_;
  bool failed_ = false;
};

// Opens what the options ask for, for a run that goes on after `last_iteration` (0: from the
// beginning). The rank that prints for all has writers, the others have none. Fails if a file can't
// be opened.
absl::StatusOr<MetricsWriters> OpenMetricsWriters(const LoopOptions& options,
                                                  int64_t last_iteration, FileSystem& fs,
                                                  RankConsole* console);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_METRICS_METRICS_WRITERS_H_
