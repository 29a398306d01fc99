#include "megatron/train/metrics/metrics_writers.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "megatron/base/status_macros.h"
#include "megatron/train/metrics/console_writers.h"
#include "megatron/train/metrics/jsonl_writer.h"
#include "megatron/train/metrics/pipeline_timeline_writer.h"

namespace megatron {

void MetricsWriters::WriteStep(const StepMetrics& step) {
  for (const auto& writer : writers_) LogFirstError(writer->WriteStep(step));
}

void MetricsWriters::WriteEvaluation(const EvaluationMetrics& evaluation) {
  for (const auto& writer : writers_) LogFirstError(writer->WriteEvaluation(evaluation));
}

void MetricsWriters::Sync() {
  for (const auto& writer : writers_) LogFirstError(writer->Sync());
}

void MetricsWriters::LogFirstError(const absl::Status& status) {
  if (status.ok() || failed_) return;
  failed_ = true;
  console_->WarnOwn(absl::StrCat("metrics could not be written: ", status.message(),
                                 "; training continues, and further such errors are not printed"));
}

absl::StatusOr<MetricsWriters> OpenMetricsWriters(const LoopOptions& options,
                                                  int64_t last_iteration, FileSystem& fs,
                                                  RankConsole* console) {
  MetricsWriters::List writers;
  if (!console->prints()) return MetricsWriters(std::move(writers), console);
  if (!options.metrics_file.empty()) {
    MEGATRON_ASSIGN_OR_RETURN(std::unique_ptr<MetricsWriter> jsonl,
                              JsonlWriter::Open(fs, options.metrics_file, last_iteration));
    writers.push_back(std::move(jsonl));
  }
  writers.push_back(std::make_unique<ProgressBarWriter>(console));
  writers.push_back(std::make_unique<LogLineWriter>(console));
  if (!options.pipeline_timeline_file.empty()) {
    writers.push_back(std::make_unique<PipelineTimelineWriter>(fs, options.pipeline_timeline_file));
  }
  return MetricsWriters(std::move(writers), console);
}

}  // namespace megatron
