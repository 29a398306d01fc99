// Draws pipeline schedules, as predicted or measured, as one SVG picture: a lane for each stage, a
// box for each action.
#ifndef MEGATRON_TOOLS_PICTURES_SCHEDULE_SVG_H_
#define MEGATRON_TOOLS_PICTURES_SCHEDULE_SVG_H_

#include <string>
#include <vector>

#include "megatron/pipeline/check_schedule.h"

namespace megatron {

struct SchedulePanel {
  std::string title;
  ScheduleReport report;
};

// Draws the panels under each other, on one scale of time. Forward passes are blue, backward passes
// orange, their input and weight parts orange and green; chunks of a stage differ in their shade,
// and micro-batches have their number if it fits.
std::string ScheduleSvg(const std::vector<SchedulePanel>& panels);

}  // namespace megatron

#endif  // MEGATRON_TOOLS_PICTURES_SCHEDULE_SVG_H_
