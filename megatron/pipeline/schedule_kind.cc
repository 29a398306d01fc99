#include "megatron/pipeline/schedule_kind.h"

#include "glog/logging.h"
#include "megatron/pipeline/zero_bubble_v.h"

namespace megatron {

PartOrder OrderOf(ScheduleKind kind) {
  return kind == ScheduleKind::kZeroBubbleV ? PartOrder::kBackAndForth : PartOrder::kRoundRobin;
}

namespace {

Schedule MakeScheduleOfKind(const ScheduleOptions& options) {
  switch (options.kind) {
    case ScheduleKind::kGPipe:
      CHECK_EQ(options.chunks, 1);
      return GPipeSchedule(options.stages, options.microbatches);
    case ScheduleKind::kOneForwardOneBackward:
      return InterleavedSchedule(
          {options.stages, options.microbatches, options.chunks, options.group});
    case ScheduleKind::kZeroBubbleH1:
      CHECK_EQ(options.chunks, 1);
      return ZeroBubbleSchedule(options.stages, options.microbatches);
    case ScheduleKind::kZeroBubbleV:
      CHECK_EQ(options.chunks, 2);
      return ZeroBubbleVSchedule(options.stages, options.microbatches, options.costs);
  }
  LOG(FATAL) << "no such schedule";
}

}  // namespace

Schedule MakeSchedule(const ScheduleOptions& options) {
  Schedule schedule = MakeScheduleOfKind(options);
  schedule.first_trained = options.first_trained;
  return schedule;
}

Schedule MakeForwards(const ScheduleOptions& options) {
  return ForwardSchedule({options.stages, options.microbatches, options.chunks, options.group},
                         OrderOf(options.kind));
}

bool FillsGroups(int stages, int group, int microbatches) {
  if (group == 0) group = stages;
  const int rest = microbatches % group;
  return group >= stages && (rest == 0 || rest >= stages || microbatches < group);
}

}  // namespace megatron
