// Opens the metrics writers of a run. Only this library knows all of them.
#ifndef MEGATRON_TRAIN_METRICS_METRICS_WRITERS_H_
#define MEGATRON_TRAIN_METRICS_METRICS_WRITERS_H_

#include <cstddef>
#include <memory>
#include <set>
#include <string>
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

// Hands the metrics to each of its writers. Of each writer only the first error of a value
// (kInvalidArgument) and the first of files are printed: a full disk would give one at every step.
class MetricsWriters {
 public:
  using List = std::vector<std::unique_ptr<MetricsWriter>>;

  // `console` must outlive this.
  MetricsWriters(List writers, RankConsole* console)
      : writers_(std::move(writers)), console_(console) {}

  void WriteStep(const StepMetrics& step);
  void WriteEvaluation(const EvaluationMetrics& evaluation);
  void WriteEvent(const RunEvent& event);
  void Sync();
  // Returns what its writers have left.
  std::string Unwritten() const;
  void WriteSummary(const RunSummary& summary);

 private:
  friend absl::StatusOr<MetricsWriters> OpenMetricsWriters(const LoopOptions&, const RunStart&,
                                                           FileSystem&, RankConsole*);

  void LogFirstError(size_t writer, const absl::Status& status);

  List writers_;
  RankConsole* console_;
  std::set<std::pair<size_t, bool>> logged_;  // the writer, and whether a value was wrong
};

// Opens what the options ask for. The rank that prints for all has writers, the others have none.
// Fails if the file of metrics is something else. One that can't be written is tried again at each
// step; TensorBoard's files are opened at the first step. An error of theirs, of Prometheus's file
// or of its port ends nothing.
absl::StatusOr<MetricsWriters> OpenMetricsWriters(const LoopOptions& options, const RunStart& start,
                                                  FileSystem& fs, RankConsole* console);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_METRICS_METRICS_WRITERS_H_
