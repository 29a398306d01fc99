#include "megatron/train/metrics/pipeline_timeline_writer.h"

#include "megatron/pipeline/timeline_text.h"

namespace megatron {

absl::Status PipelineTimelineWriter::WriteStep(const StepMetrics& step) {
  if (!step.interval.has_value() || step.pipeline == nullptr) return absl::OkStatus();
  return WriteFileAtomically(fs_, path_, TimelineText(*step.pipeline));
}

}  // namespace megatron
