#include "megatron/train/metrics/metrics_writers.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "megatron/base/status_macros.h"
#include "megatron/train/metrics/console_writers.h"
#include "megatron/train/metrics/jsonl_writer.h"
#include "megatron/train/metrics/pipeline_timeline_writer.h"
#include "megatron/train/metrics/prometheus_writer.h"
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

void MetricsWriters::WriteEvent(const RunEvent& event) {
  for (size_t i = 0; i < writers_.size(); ++i) LogFirstError(i, writers_[i]->WriteEvent(event));
}

void MetricsWriters::Sync() {
  for (size_t i = 0; i < writers_.size(); ++i) LogFirstError(i, writers_[i]->Sync());
}

std::string MetricsWriters::Unwritten() const {
  std::string unwritten;
  for (const auto& writer : writers_) unwritten += writer->Unwritten();
  return unwritten;
}

void MetricsWriters::WriteSummary(const RunSummary& summary) {
  for (size_t i = 0; i < writers_.size(); ++i) LogFirstError(i, writers_[i]->WriteSummary(summary));
}

void MetricsWriters::LogFirstError(size_t writer, const absl::Status& status) {
  if (status.ok() || !logged_.emplace(writer, absl::IsInvalidArgument(status)).second) return;
  console_->WarnOwn(absl::StrCat("metrics could not be written: ", status.message(),
                                 "; training continues, and further such errors are not printed"));
}

namespace {

std::unique_ptr<MetricsWriter> OpenPrometheus(const LoopOptions& options, const RunStart& start,
                                              FileSystem& fs, RankConsole* console) {
  PrometheusOptions prometheus;
  prometheus.textfile = options.prometheus_textfile;
  prometheus.silence_limit = options.silence_limit;
  auto writer = std::make_unique<PrometheusWriter>(fs, prometheus, start);
  if (options.metrics_port < 0) return writer;
  const absl::StatusOr<std::string> address =
      writer->Listen(static_cast<int>(options.metrics_port));
  if (address.ok()) {
    console->PrintOwn(absl::StrCat("metrics for Prometheus: ", *address, "/metrics\n"));
  } else {
    console->WarnOwn(absl::StrCat("logging.metrics_port: ", options.metrics_port,
                                  " cannot be opened: ", address.status().message(),
                                  "; training continues without it"));
  }
  return writer;
}

}  // namespace

absl::StatusOr<MetricsWriters> OpenMetricsWriters(const LoopOptions& options, const RunStart& start,
                                                  FileSystem& fs, RankConsole* console) {
  MetricsWriters::List writers;
  if (!console->prints()) return MetricsWriters(std::move(writers), console);
  std::optional<size_t> said;  // the writer whose error has been printed
  if (!options.metrics_file.empty()) {
    absl::StatusOr<std::unique_ptr<JsonlWriter>> jsonl = JsonlWriter::Open(
        fs, options.metrics_file, start.last_iteration, start.last_step, start.unwritten);
    // What is something else is not written over.
    if (!jsonl.ok()) {
      return absl::Status(jsonl.status().code(),
                          absl::StrCat("logging.metrics_file: ", jsonl.status().message()));
    }
    if (!(*jsonl)->opened().ok()) {
      console->WarnOwn(absl::StrCat("logging.metrics_file: ", (*jsonl)->opened().message(),
                                    "; training continues, and its lines are written as soon as "
                                    "they can be"));
      said = writers.size();
    }
    writers.push_back(*std::move(jsonl));
    writers.push_back(std::make_unique<RankTimesWriter>(fs, RankTimesPath(options.metrics_file)));
  }
  if (!options.tensorboard_dir.empty())
    writers.push_back(std::make_unique<TensorboardWriter>(fs, options.tensorboard_dir, start));
  if (!options.prometheus_textfile.empty() || options.metrics_port >= 0)
    writers.push_back(OpenPrometheus(options, start, fs, console));
  writers.push_back(std::make_unique<ProgressBarWriter>(console));
  writers.push_back(std::make_unique<LogLineWriter>(console, options.timing_log_level,
                                                    options.timing_log_option));
  if (!options.pipeline_timeline_file.empty()) {
    writers.push_back(std::make_unique<PipelineTimelineWriter>(fs, options.pipeline_timeline_file));
  }
  MetricsWriters opened(std::move(writers), console);
  if (said) opened.logged_.emplace(*said, false);
  return opened;
}

}  // namespace megatron
