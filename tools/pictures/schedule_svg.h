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

// The panels under each other, on one scale of time. Forwards blue, backwards orange, their input
// and weight parts orange and green; the chunks of a stage are told by their shade, micro-batches
// by their number where it fits.
std::string ScheduleSvg(const std::vector<SchedulePanel>& panels);

}  // namespace megatron

#endif  // MEGATRON_TOOLS_PICTURES_SCHEDULE_SVG_H_
