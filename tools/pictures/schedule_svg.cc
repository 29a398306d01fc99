#include "tools/pictures/schedule_svg.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"

namespace megatron {
namespace {

constexpr double kNarrowest = 14, kLeast = 520, kMost = 1400;  // pixels: of an action, of all

absl::string_view Name(ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward:
      return "forward";
    case ActionKind::kBackward:
      return "backward";
    case ActionKind::kBackwardInput:
      return "backward, inputs";
    case ActionKind::kBackwardWeight:
      return "backward, weights";
  }
  return "";
}

// Returns the pixels in which the shortest action can be seen.
double PixelsOf(const std::vector<SchedulePanel>& panels) {
  double longest = 0, shortest = 0;
  for (const SchedulePanel& panel : panels) {
    longest = std::max(longest, panel.report.time);
    for (const Timeline& stage : panel.report.stages) {
      for (const TimedAction& timed : stage) {
        const double length = timed.end - timed.start;
        if (shortest == 0 || (length > 0 && length < shortest)) shortest = length;
      }
    }
  }
  return std::clamp(shortest > 0 ? kNarrowest * longest / shortest : kMost, kLeast, kMost);
}

}  // namespace

int ColorOfAction(ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward:
      return 5;
    case ActionKind::kBackward:
    case ActionKind::kBackwardInput:
      return 4;
    case ActionKind::kBackwardWeight:
      return 2;
  }
  return 0;
}

std::vector<LaneKind> ScheduleKinds() {
  return {{ColorOfAction(ActionKind::kForward), "forward"},
          {ColorOfAction(ActionKind::kBackward), "backward"},
          {ColorOfAction(ActionKind::kBackwardWeight), "backward, weights"}};
}

LanePanel ScheduleLanes(const SchedulePanel& panel, double unit) {
  LanePanel lanes = {panel.title, {}};
  for (size_t stage = 0; stage < panel.report.stages.size(); ++stage) {
    Lane& lane = lanes.lanes.emplace_back();
    lane.name = absl::StrCat("stage ", stage);
    for (const TimedAction& timed : panel.report.stages[stage]) {
      const Action& action = timed.action;
      LaneBox box;
      box.begin = unit * timed.start;
      box.end = unit * timed.end;
      box.color = ColorOfAction(action.kind);
      box.opacity = 1 / (1 + 0.6 * action.chunk);
      box.label = absl::StrCat(action.microbatch);
      box.title = absl::StrFormat(
          "%s of micro-batch %d%s, %.4g to %.4g", Name(action.kind), action.microbatch,
          action.chunk == 0 ? "" : absl::StrCat(" on chunk ", action.chunk), box.begin, box.end);
      lane.boxes.push_back(std::move(box));
    }
  }
  return lanes;
}

std::string ScheduleSvg(const std::vector<SchedulePanel>& panels) {
  LaneChart chart;
  chart.frame.title = "Pipeline schedule";
  chart.frame.description = "What each stage does when.";
  chart.x_label = "time";
  chart.kinds = ScheduleKinds();
  for (const SchedulePanel& panel : panels) chart.panels.push_back(ScheduleLanes(panel, 1));
  chart.frame.width =
      LaneMargins(absl::string_view("stage 0").size()) + static_cast<int>(PixelsOf(panels));
  return LaneChartAlone(chart);
}

}  // namespace megatron
