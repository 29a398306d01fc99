// The schedules by name, and one way to make any of them.
#ifndef MEGATRON_PIPELINE_SCHEDULE_KIND_H_
#define MEGATRON_PIPELINE_SCHEDULE_KIND_H_

#include "megatron/pipeline/schedule.h"

namespace megatron {

enum class ScheduleKind {
  kGPipe,                  // one chunk
  kOneForwardOneBackward,  // any number of chunks: more than one are interleaved
  kZeroBubbleH1,           // one chunk
  kZeroBubbleV,            // two chunks
};

// The order in which the schedule lays the model's parts over stages.
PartOrder OrderOf(ScheduleKind kind);

struct ScheduleOptions {
  ScheduleKind kind = ScheduleKind::kOneForwardOneBackward;
  int stages = 1;
  int microbatches = 1;
  int chunks = 1;
  int group = 0;          // InterleavedOptions::group
  ActionCosts costs;      // ZB-V's order follows from them
  int first_trained = 0;  // Schedule::first_trained
};

Schedule MakeSchedule(const ScheduleOptions& options);
// Forwards alone, over the same parts.
Schedule MakeForwards(const ScheduleOptions& options);

// Returns whether interleaved micro-batches fill groups: only the last may be smaller, and it may
// not be smaller than the number of stages unless it is the only one.
bool FillsGroups(int stages, int group, int microbatches);

}  // namespace megatron

#endif  // MEGATRON_PIPELINE_SCHEDULE_KIND_H_
