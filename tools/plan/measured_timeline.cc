#include "tools/plan/measured_timeline.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "megatron/pipeline/check_schedule.h"
#include "megatron/train/planning/explain_step.h"
#include "tools/pictures/schedule_svg.h"

namespace megatron {
namespace {

using report::RankProfile;
using report::RunProfile;
using report::StepPart;

constexpr int kWait = 3;      // the color of calls with other ranks, and of waiting for them
constexpr int kRest = 1;      // the color of other parts
constexpr double kMs = 1e-3;  // seconds

int64_t Nanoseconds(double milliseconds) { return std::llround(milliseconds * 1e6); }

bool IsPass(const StepPart& part) {
  return part.kind == "forward" || absl::StartsWith(part.kind, "backward");
}

int ColorOf(const StepPart& part) {
  if (part.kind == "forward") return ColorOfAction(ActionKind::kForward);
  if (part.kind == "backward weight") return ColorOfAction(ActionKind::kBackwardWeight);
  if (IsPass(part)) return ColorOfAction(ActionKind::kBackward);
  const bool waits =
      absl::StartsWith(part.kind, "communication") || absl::StartsWith(part.kind, "wait");
  return waits ? kWait : kRest;
}

// Returns the milliseconds at which the rank's last profiled step begins, on its own clock.
double BeginOf(const RankProfile& rank) {
  double begin = rank.parts.empty() ? 0 : rank.parts.front().begin;
  for (const StepPart& part : rank.parts) begin = std::min(begin, part.begin);
  return begin;
}

TracedRank TraceOf(const RankProfile& measured, int process) {
  TracedRank rank;
  rank.rank = process;
  rank.title = absl::StrCat("measured rank ", measured.rank);
  TracedStream stream;
  stream.name = "step";
  const double begin = BeginOf(measured);
  for (const StepPart& part : measured.parts) {
    TracedSpan span;
    span.name = part.name;
    span.begin = Nanoseconds(part.begin - begin);
    span.end = Nanoseconds(part.end - begin);
    stream.spans.push_back(std::move(span));
  }
  rank.streams.push_back(std::move(stream));
  return rank;
}

Lane LaneOf(const RankProfile& measured) {
  Lane lane;
  lane.name = absl::StrCat("rank ", measured.rank);
  const double begin = BeginOf(measured);
  for (const StepPart& part : measured.parts) {
    LaneBox box;
    box.begin = part.begin - begin;
    box.end = part.end - begin;
    box.color = ColorOf(part);
    box.inner = part.inside;
    if (IsPass(part)) box.label = part.name.substr(part.name.rfind(' ') + 1);
    box.title = absl::StrFormat("%s, %.4g to %.4g", part.name, box.begin, box.end);
    lane.boxes.push_back(std::move(box));
  }
  return lane;
}

}  // namespace

double FirstPass(const RunProfile& measured) {
  double first = -1;
  for (const RankProfile& rank : measured.ranks) {
    for (const StepPart& part : rank.parts) {
      const double begin = part.begin - BeginOf(rank);
      if (IsPass(part) && (first < 0 || begin < first)) first = begin;
    }
  }
  return kMs * std::max(0.0, first);
}

std::vector<TracedRank> TraceBeside(const SimulatedStep& simulated, const RunProfile& measured) {
  std::vector<TracedRank> ranks = ToTrace(simulated);
  const int64_t shift = Nanoseconds(FirstPass(measured) / kMs);
  for (TracedRank& rank : ranks) {
    for (TracedStream& stream : rank.streams) {
      for (TracedSpan& span : stream.spans) {
        span.begin += shift;
        span.end += shift;
      }
    }
  }
  for (const RankProfile& rank : measured.ranks)
    ranks.push_back(TraceOf(rank, static_cast<int>(ranks.size())));
  return ranks;
}

LaneChart ChartBeside(const SimulatedStep& simulated, const RunProfile& measured,
                      size_t most_lanes) {
  LaneChart chart;
  const bool is_alone = measured.ranks.empty();
  chart.frame.title = is_alone ? "A simulated step" : "A step, simulated and measured";
  chart.frame.description =
      is_alone
          ? "The passes of pipeline stages as they are predicted."
          : "The passes of pipeline stages as they are predicted, and below them what each rank "
            "did in a profiled step.";
  chart.x_label = is_alone ? "ms" : "ms since the measured step began";
  std::vector<Timeline> stages;
  const double shift = FirstPass(measured);
  for (const SimulatedStage& stage : simulated.stages) {
    if (stages.size() == most_lanes) break;
    stages.push_back(stage.passes);
    for (TimedAction& pass : stages.back()) {
      pass.start += shift;
      pass.end += shift;
    }
  }
  chart.panels.push_back(ScheduleLanes({"simulated", SummarizeTimelines(std::move(stages))}, 1e3));
  LanePanel panel = {"measured", {}};
  for (const RankProfile& rank : measured.ranks) {
    if (panel.lanes.size() == most_lanes) break;
    panel.lanes.push_back(LaneOf(rank));
  }
  if (!is_alone) chart.panels.push_back(std::move(panel));
  std::vector<LaneKind> kinds = ScheduleKinds();
  kinds.push_back({kWait, "calls with other ranks and waiting for them"});
  kinds.push_back({kRest, "other parts"});
  chart.kinds = KindsThere(chart.panels, kinds);
  return chart;
}

}  // namespace megatron
