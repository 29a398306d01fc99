// Draws pipeline schedules, as predicted or measured: a lane for each stage, a box for each action.
#ifndef MEGATRON_TOOLS_PICTURES_SCHEDULE_SVG_H_
#define MEGATRON_TOOLS_PICTURES_SCHEDULE_SVG_H_

#include <string>
#include <vector>

#include "megatron/pipeline/check_schedule.h"
#include "tools/pictures/lane_chart.h"

namespace megatron {

struct SchedulePanel {
  std::string title;
  ScheduleReport report;
};

// Draws the panels under each other, on one scale of time, as a picture of its own. Chunks of a
// stage differ in their shade, and micro-batches have their number if it fits.
std::string ScheduleSvg(const std::vector<SchedulePanel>& panels);

// Returns a panel as lanes of a larger picture. Times are multiplied by `unit`.
LanePanel ScheduleLanes(const SchedulePanel& panel, double unit);
// Returns the kinds of actions, with their colors.
std::vector<LaneKind> ScheduleKinds();
int ColorOfAction(ActionKind kind);

}  // namespace megatron

#endif  // MEGATRON_TOOLS_PICTURES_SCHEDULE_SVG_H_
