#include "tools/report/profile_blocks.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "megatron/base/quantity.h"
#include "megatron/pipeline/check_schedule.h"
#include "megatron/train/trainer/run_plan.h"
#include "tools/pictures/lane_chart.h"
#include "tools/pictures/line_chart.h"
#include "tools/pictures/schedule_svg.h"
#include "tools/pictures/stack_chart.h"
#include "tools/report/numbers.h"
#include "tools/report/rank_blocks.h"

namespace megatron::report {
namespace {

constexpr int kWide = 1080;           // pixels of a picture as wide as the page
constexpr size_t kMostBoxes = 1200;   // boxes of a picture
constexpr size_t kMostLanes = 32;     // lanes of a picture, and curves of memory
constexpr size_t kMostKinds = 16;     // columns of the table of parts
constexpr size_t kMostCalls = 40;     // rows of the table of communication
constexpr double kNoticeable = 0.05;  // milliseconds; smaller differences are not marked

constexpr int kCommunication = 3, kUpdate = 0, kRest = 1;

int ColorOf(absl::string_view kind) {
  if (absl::StartsWith(kind, "communication")) return kCommunication;
  if (kind == "forward") return ColorOfAction(ActionKind::kForward);
  if (kind == "backward weight") return ColorOfAction(ActionKind::kBackwardWeight);
  if (absl::StartsWith(kind, "backward")) return ColorOfAction(ActionKind::kBackward);
  return kind == "optimizer" ? kUpdate : kRest;
}

// Returns a picture as wide as the page with its legend.
Figure WideFigure(LaneChart chart, const std::string& id) {
  chart.frame.width = kWide;
  chart.most_boxes = kMostBoxes;
  std::vector<LaneKind> kinds = ScheduleKinds();
  kinds.push_back({kCommunication, "calls with other ranks"});
  kinds.push_back({kUpdate, "optimizer"});
  kinds.push_back({kRest, "other parts"});
  Figure figure;
  figure.title = chart.frame.title;
  figure.wide = true;
  figure.svg = LaneChartInPage(chart, id);
  for (const LaneKind& kind : KindsThere(chart.panels, kinds))
    figure.legend.push_back({StackKey(kind.color), kind.name});
  return figure;
}

// Returns the kinds of parts, the longest first, and "other" last.
std::vector<std::string> KindsOf(const RunProfile& profile) {
  std::map<std::string, double> totals;
  for (const RankProfile& rank : profile.ranks) {
    for (const auto& [kind, milliseconds] : rank.milliseconds) totals[kind] += milliseconds;
  }
  std::vector<std::pair<double, std::string>> sorted;
  for (const auto& [kind, total] : totals) sorted.emplace_back(kind == "other" ? 0 : -total, kind);
  std::sort(sorted.begin(), sorted.end());
  std::vector<std::string> kinds;
  for (const auto& [total, kind] : sorted) {
    if (kinds.size() < kMostKinds) kinds.push_back(kind);
  }
  return kinds;
}

double TimeOf(const RankProfile& rank, const std::string& kind) {
  const auto found = rank.milliseconds.find(kind);
  return found == rank.milliseconds.end() ? 0 : found->second;
}

Table TimesTable(const RunProfile& profile, const std::string& of_run) {
  const std::vector<std::string> kinds = KindsOf(profile);
  Table table;
  table.caption = absl::StrCat("Milliseconds of a step, by rank", of_run);
  table.columns = {"rank"};
  table.columns.insert(table.columns.end(), kinds.begin(), kinds.end());
  table.columns.push_back("step");
  std::map<std::string, double> medians;
  for (const std::string& kind : kinds) {
    std::vector<double> times;
    for (const RankProfile& rank : profile.ranks) times.push_back(TimeOf(rank, kind));
    medians[kind] = Quantile(times, 0.5);
  }
  for (const RankProfile& rank : profile.ranks) {
    std::vector<TableCell> cells = {absl::StrCat(rank.rank)};
    double step = 0;
    for (const auto& [kind, milliseconds] : rank.milliseconds) step += milliseconds;
    for (const std::string& kind : kinds) {
      const double time = TimeOf(rank, kind);
      cells.emplace_back(absl::StrFormat("%.2f", time),
                         profile.ranks.size() > 1 ? HeatOf(time, medians[kind], kNoticeable) : 0);
    }
    cells.emplace_back(absl::StrFormat("%.2f", step));
    table.rows.push_back(std::move(cells));
  }
  table.note = absl::StrFormat(
      "Means of %d profiled steps. A call with other ranks includes the time spent waiting for "
      "them."
      "%s",
      profile.ranks.front().steps,
      profile.ranks.size() > 1 ? " Colored cells are 5, 10, 25 and 50 % above the median of all "
                                 "ranks."
                               : "");
  return table;
}

Figure StepFigure(const RunProfile& profile, const std::string& of_run, const std::string& id) {
  LaneChart chart;
  chart.frame.title = absl::StrCat("A step on each rank", of_run);
  chart.x_label = "milliseconds since the first profiled step began";
  LanePanel& panel = chart.panels.emplace_back();
  for (const RankProfile& rank : profile.ranks) {
    if (panel.lanes.size() == kMostLanes) break;
    Lane lane = {absl::StrCat("rank ", rank.rank), {}};
    for (size_t i = 0; i < rank.parts.size(); ++i) {
      const StepPart& part = rank.parts[i];
      const bool has_inner = i + 1 < rank.parts.size() && rank.parts[i + 1].inside && !part.inside;
      const bool is_pass =
          absl::StartsWith(part.kind, "forward") || absl::StartsWith(part.kind, "backward");
      LaneBox box;
      box.begin = part.begin;
      box.end = part.end;
      box.color = ColorOf(part.kind);
      if (is_pass) {
        box.label = part.name.substr(part.name.rfind(' ') + 1);
      } else if (!has_inner) {
        box.label = part.name;
      }
      box.title = absl::StrFormat("%s, %.2f ms", part.name, part.end - part.begin);
      box.inner = part.inside;
      lane.boxes.push_back(std::move(box));
    }
    panel.lanes.push_back(std::move(lane));
  }
  chart.frame.description = absl::StrCat("The parts of the last profiled step on ",
                                         panel.lanes.size(), " ranks, one below the other.");
  Figure figure = WideFigure(std::move(chart), id);
  figure.caption =
      "The last profiled step. Calls inside another part are in the lower half of a lane; numbers "
      "are those of micro-batches.";
  return figure;
}

// Returns a panel in milliseconds of at most kMostLanes stages.
LanePanel PipelinePanel(const char* what, ScheduleReport report) {
  const std::string title =
      absl::StrFormat("%s: %.1f ms, bubble %.1f %%", what, 1e3 * report.time, 100 * report.bubble);
  report.stages.resize(std::min(report.stages.size(), kMostLanes));
  return ScheduleLanes({title, std::move(report)}, 1e3);
}

}  // namespace

std::vector<Block> StepBlocks(const RunProfile& profile, const std::string& of_run,
                              absl::string_view id) {
  if (profile.ranks.empty()) return {};
  return {TimesTable(profile, of_run), StepFigure(profile, of_run, absl::StrCat(id, "-step"))};
}

std::vector<Block> CommunicationBlocks(const RunProfile& profile, const std::string& of_run) {
  struct Totals {
    CommunicationTotals all;
    double steps = 0;  // the sum over the ranks that call
    double least = INFINITY, most = 0;
    int ranks = 0;
  };
  std::map<std::pair<std::string, std::string>, Totals> calls;
  for (const RankProfile& rank : profile.ranks) {
    for (const auto& [call, totals] : rank.communication) {
      Totals& sum = calls[call];
      sum.all.calls += totals.calls;
      sum.all.bytes += totals.bytes;
      sum.all.milliseconds += totals.milliseconds;
      const double steps = static_cast<double>(rank.steps);
      sum.steps += steps;
      sum.least = std::min(sum.least, totals.milliseconds / steps);
      sum.most = std::max(sum.most, totals.milliseconds / steps);
      ++sum.ranks;
    }
  }
  if (calls.empty()) return {};
  Table table;
  table.caption = absl::StrCat("Calls with other ranks in a step", of_run);
  table.columns = {"operation and axis", "ranks",    "calls",  "bytes of a call",
                   "ms of a rank",       "least ms", "most ms"};
  for (const auto& [call, totals] : calls) {
    if (table.rows.size() == kMostCalls) break;
    table.rows.push_back(
        {absl::StrCat(call.first, ", ", call.second), absl::StrCat(totals.ranks),
         absl::StrFormat("%.1f", static_cast<double>(totals.all.calls) / totals.steps),
         FormatBytes(static_cast<int64_t>(
             std::clamp(totals.all.bytes / static_cast<double>(totals.all.calls), 0.0, 1e15))),
         absl::StrFormat("%.2f", totals.all.milliseconds / totals.steps),
         absl::StrFormat("%.2f", totals.least), absl::StrFormat("%.2f", totals.most)});
  }
  table.note =
      "Of the profiled ranks. Times include waiting for other ranks; where one rank has the least "
      "time by far, the others wait for it. Calls between steps and those that overlap with "
      "computing are counted too.";
  return {std::move(table)};
}

std::vector<Block> CounterBlocks(const RunProfile& profile, const std::string& of_run,
                                 absl::string_view id) {
  std::set<std::string> names;
  for (const RankProfile& rank : profile.ranks) {
    for (const auto& [name, points] : rank.counters) names.insert(name);
  }
  std::vector<Block> blocks;
  for (const std::string& name : names) {
    LineChart chart;
    chart.x_label = "milliseconds since the first profiled step began";
    chart.y_label = "MiB";
    Figure figure;
    double most = 0;
    for (const RankProfile& rank : profile.ranks) {
      const auto found = rank.counters.find(name);
      if (found == rank.counters.end() || chart.curves.size() == kPictureColors) continue;
      PlotPoints points;
      for (const auto& [time, bytes] : found->second) {
        points.emplace_back(time, bytes / (1 << 20));
        most = std::max(most, bytes);
      }
      const int color = static_cast<int>(chart.curves.size());
      chart.curves.push_back(
          {absl::StrCat("rank ", rank.rank), std::move(points), CurveLook::kLine, color});
      figure.legend.push_back({CurveKey(CurveLook::kLine, color), chart.curves.back().name});
    }
    if (most <= 0) continue;
    figure.title = absl::StrCat(name, " in the profiled steps", of_run);
    chart.frame.title = figure.title;
    chart.frame.description = absl::StrCat("The most is ", ShortNumber(most / (1 << 20)), " MiB.");
    figure.svg = LineChartInPage(chart, absl::StrCat(id, "-counter-", blocks.size()));
    figure.caption = chart.frame.description;
    if (profile.ranks.size() > kPictureColors)
      absl::StrAppend(&figure.caption, " The first ", kPictureColors, " ranks.");
    blocks.emplace_back(std::move(figure));
  }
  return blocks;
}

std::vector<Block> PipelineBlocks(const MeasuredSchedule& measured, const std::string& of_run,
                                  absl::string_view id) {
  LaneChart chart;
  chart.frame.title = absl::StrCat("A step of the pipeline", of_run);
  chart.x_label = "milliseconds";
  absl::StatusOr<ScheduleReport> predicted = CheckSchedule(measured.schedule, MeanCosts(measured));
  if (predicted.ok())
    chart.panels.push_back(PipelinePanel("As its mean times predict", *std::move(predicted)));
  chart.panels.push_back(PipelinePanel("As measured", SummarizeTimelines(measured.timelines)));
  for (const LanePanel& panel : chart.panels)
    absl::StrAppend(&chart.frame.description, panel.title, ". ");
  Figure figure = WideFigure(std::move(chart), absl::StrCat(id, "-pipeline"));
  figure.caption =
      "The last logged step. Numbers are those of micro-batches; the bubble is what the schedule "
      "adds to the work of the busiest stage.";
  return {std::move(figure)};
}

}  // namespace megatron::report
