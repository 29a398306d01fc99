// Timelines of the stages of a pipeline as text, for files: a line "pipeline STAGES CHUNKS
// MICROBATCHES ORDER" and one "STAGE ACTION START END" for each action, in seconds, ORDER one of
// round-robin and back-and-forth.
#ifndef MEGATRON_PIPELINE_TIMELINE_TEXT_H_
#define MEGATRON_PIPELINE_TIMELINE_TEXT_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "megatron/pipeline/check_schedule.h"

namespace megatron {

// The schedule, and when its actions ran.
struct MeasuredSchedule {
  Schedule schedule;
  std::vector<Timeline> timelines;
};

std::string TimelineText(const MeasuredSchedule& measured);
// Returns kInvalidArgument with the number of the line at fault. All actions have a stage, a chunk
// and a micro-batch that there are, and there are as many as the product of these numbers at least.
// The schedule need not be right.
absl::StatusOr<MeasuredSchedule> ParseTimelineText(absl::string_view text);

// The mean time of each kind of action in each part of the model. A backward that was whole counts
// half for each of its two parts.
PartCosts MeanCosts(const MeasuredSchedule& measured);

}  // namespace megatron

#endif  // MEGATRON_PIPELINE_TIMELINE_TEXT_H_
