// Writes when each part of a pipeline ran (pipeline/timeline_text.h) to one file, which every
// logged step replaces.
#ifndef MEGATRON_TRAIN_METRICS_PIPELINE_TIMELINE_WRITER_H_
#define MEGATRON_TRAIN_METRICS_PIPELINE_TIMELINE_WRITER_H_

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "megatron/base/file_system.h"
#include "megatron/train/metrics/metrics_writer.h"

namespace megatron {

class PipelineTimelineWriter : public MetricsWriter {
 public:
  // `fs` must outlive this.
  PipelineTimelineWriter(FileSystem& fs, std::string path) : fs_(fs), path_(std::move(path)) {}

  absl::Status WriteStep(const StepMetrics& step) override;
  absl::Status WriteEvaluation(const EvaluationMetrics&) override { return absl::OkStatus(); }

 private:
  FileSystem& fs_;
  const std::string path_;
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_METRICS_PIPELINE_TIMELINE_WRITER_H_
