#include "megatron/train/metrics/metrics_writers.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "megatron/base/status_macros.h"
#include "megatron/train/metrics/console_writers.h"
#include "megatron/train/metrics/jsonl_writer.h"
#include "megatron/train/metrics/pipeline_timeline_writer.h"
#include "megatron/train/metrics/rank_times_writer.h"
#include "megatron/train/metrics/tensorboard_writer.h"

namespace megatron {

void MetricsWriters::WriteStep(const StepMetrics& step) {
  for (size_t i = 0; i < writers_.size(); ++i) LogFirstError(i, writers_[i]->WriteStep(step));
}

void MetricsWriters::WriteEvaluation(const EvaluationMetrics& evaluation) {
  for (size_t i = 0; i < writers_.size(); ++i)
    LogFirstError(i, writers_[i]->WriteEvaluation(evaluation));
}

void MetricsWriters::Sync() {
  for (size_t i = 0; i < writers_.size(); ++i) LogFirstError(i, writers_[i]->Sync());
}

void MetricsWriters::WriteSummary(const RunSummary& summary) {
  for (size_t i = 0; i < writers_.size(); ++i) LogFirstError(i, writers_[i]->WriteSummary(summary));
}

void MetricsWriters::LogFirstError(size_t writer, const absl::Status& status) {
  if (status.ok() || !logged_.emplace(writer, absl::IsInvalidArgument(status)).second) return;
  console_->WarnOwn(absl::StrCat("metrics could not be written: ", status.message(),
                                 "; training continues, and further such errors are not printed"));
}

absl::StatusOr<MetricsWriters> OpenMetricsWriters(const LoopOptions& options, const RunStart& start,
                                                  FileSystem& fs, RankConsole* console) {
  MetricsWriters::List writers;
  if (!console->prints()) return MetricsWriters(std::move(writers), console);
  if (!options.metrics_file.empty()) {
    MEGATRON_ASSIGN_OR_RETURN(std::unique_ptr<MetricsWriter> jsonl,
                              JsonlWriter::Open(fs, options.metrics_file, start.last_iteration));
    writers.push_back(std::move(jsonl));
    writers.push_back(std::make_unique<RankTimesWriter>(fs, RankTimesPath(options.metrics_file)));
  }
  if (!options.tensorboard_dir.empty())
    writers.push_back(std::make_unique<TensorboardWriter>(fs, options.tensorboard_dir, start));
  writers.push_back(std::make_unique<ProgressBarWriter>(console));
  writers.push_back(std::make_unique<LogLineWriter>(console, options.timing_log_level,
                                                    options.timing_log_option));
  if (!options.pipeline_timeline_file.empty()) {
    writers.push_back(std::make_unique<PipelineTimelineWriter>(fs, options.pipeline_timeline_file));
  }
  return MetricsWriters(std::move(writers), console);
}

}  // namespace megatron
