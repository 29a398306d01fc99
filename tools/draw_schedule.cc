// Draws a pipeline schedule, and prints how long it is idle and how much it holds in memory.
//
//   draw_schedule --schedule=zb_v --stages=4 --microbatches=8 --output=zb.svg
//   draw_schedule --schedule=zb_v --stages=4 --sleep_ms=20     predicted, and ranks that sleep
//   draw_schedule --measured=timeline.txt                      predicted, and a step of
//   pretrain_gpt

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "megatron/base/file_system.h"
#include "megatron/base/status_macros.h"
#include "megatron/pipeline/check_schedule.h"
#include "megatron/pipeline/schedule_kind.h"
#include "megatron/pipeline/sleep_through.h"
#include "megatron/pipeline/timeline_text.h"
#include "tools/common/tool_main.h"
#include "tools/pictures/schedule_svg.h"

ABSL_FLAG(std::string, schedule, "1f1b", "gpipe, 1f1b, interleaved, zb_h1 or zb_v.");
ABSL_FLAG(int, stages, 4, "Ranks of the pipeline.");
ABSL_FLAG(int, microbatches, 8, "Micro-batches of a step.");
ABSL_FLAG(int, chunks, 2, "Parts of the model on each stage, of an interleaved schedule.");
ABSL_FLAG(double, forward, 1, "What a chunk's forward costs, in any unit.");
ABSL_FLAG(double, backward_input, 1, "What the gradient of its inputs costs.");
ABSL_FLAG(double, backward_weight, 1, "What the gradient of its weights costs.");
ABSL_FLAG(
    double, sleep_ms, 0,
    "Not 0: ranks run the schedule, asleep for so many milliseconds per unit of cost, and what "
    "was measured is drawn below.");
ABSL_FLAG(
    std::string, measured, "",
    "A file that pretrain_gpt wrote for logging.pipeline_timeline_file, in place of a schedule: "
    "drawn below what its mean costs predict.");
ABSL_FLAG(std::string, output, "schedule.svg", "The picture.");

namespace megatron {
namespace {

constexpr int kMost = 1024;                // stages, micro-batches, chunks
constexpr int64_t kMostActions = 100'000;  // a picture with more actions cannot be read

absl::Status CheckFlags(int stages, int microbatches, int chunks) {
  for (int value : {stages, microbatches, chunks}) {
    if (value < 1 || value > kMost) {
      return absl::InvalidArgumentError(
          absl::StrCat("stages, microbatches and chunks lie from 1 to ", kMost, ", not ", value));
    }
  }
  if (int64_t{3} * stages * microbatches * chunks > kMostActions) {
    return absl::InvalidArgumentError(
        absl::StrCat("a picture of ", int64_t{3} * stages * microbatches * chunks,
                     " actions shows nothing; the most is ", kMostActions));
  }
  if (!(absl::GetFlag(FLAGS_sleep_ms) >= 0 && absl::GetFlag(FLAGS_sleep_ms) <= 10000))
    return absl::InvalidArgumentError("sleep_ms lies from 0 to 10000");
  return absl::OkStatus();
}

absl::StatusOr<ScheduleOptions> OptionsOf(const std::string& name) {
  static constexpr const char* kNames[] = {"gpipe", "1f1b", "zb_h1", "zb_v"};
  ScheduleOptions options;
  options.stages = absl::GetFlag(FLAGS_stages);
  options.microbatches = absl::GetFlag(FLAGS_microbatches);
  if (name == "interleaved") {
    options.chunks = absl::GetFlag(FLAGS_chunks);
  } else {
    const auto found = std::find(std::begin(kNames), std::end(kNames), name);
    if (found == std::end(kNames)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "unknown schedule '", name, "'; there are gpipe, 1f1b, interleaved, zb_h1 and zb_v"));
    }
    options.kind = static_cast<ScheduleKind>(found - std::begin(kNames));
    options.chunks = name == "zb_v" ? 2 : 1;
  }
  MEGATRON_RETURN_IF_ERROR(CheckFlags(options.stages, options.microbatches, options.chunks));
  if (options.chunks > 1 && name == "interleaved" &&
      !FillsGroups(options.stages, options.group, options.microbatches)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "interleaving wants micro-batches in whole groups of the ", options.stages, " stages, and ",
        options.microbatches, " leave ", options.microbatches % options.stages, " over"));
  }
  return options;
}

absl::StatusOr<ActionCosts> Costs() {
  ActionCosts costs;
  costs.forward = absl::GetFlag(FLAGS_forward);
  costs.backward_input = absl::GetFlag(FLAGS_backward_input);
  costs.backward_weight = absl::GetFlag(FLAGS_backward_weight);
  for (double cost : {costs.forward, costs.backward_input, costs.backward_weight}) {
    if (!(cost > 0 && cost < 1e9)) {
      return absl::InvalidArgumentError(absl::StrCat("a cost lies above 0, not ", cost));
    }
  }
  return costs;
}

SchedulePanel Panel(const std::string& what, const Schedule& schedule, ScheduleReport report) {
  const std::string title =
      absl::StrFormat("%s, %d stages, %d micro-batches%s: bubble %.1f %%", what, schedule.stages,
                      schedule.microbatches,
                      schedule.chunks > 1 ? absl::StrFormat(", %d chunks", schedule.chunks) : "",
                      100 * report.bubble);
  return {title, std::move(report)};
}

absl::StatusOr<std::vector<SchedulePanel>> PanelsOfFlags() {
  const std::string name = absl::GetFlag(FLAGS_schedule);
  MEGATRON_ASSIGN_OR_RETURN(ScheduleOptions options, OptionsOf(name));
  MEGATRON_ASSIGN_OR_RETURN(options.costs, Costs());
  const Schedule schedule = MakeSchedule(options);
  const double seconds = absl::GetFlag(FLAGS_sleep_ms) / 1000;
  const double unit = seconds == 0 ? 1 : seconds;
  const ActionCosts costs = {unit * options.costs.forward, unit * options.costs.backward_input,
                             unit * options.costs.backward_weight};
  MEGATRON_ASSIGN_OR_RETURN(ScheduleReport predicted, CheckSchedule(schedule, costs));
  std::vector<SchedulePanel> panels = {Panel(name, schedule, std::move(predicted))};
  if (seconds == 0) return panels;
  MEGATRON_ASSIGN_OR_RETURN(ScheduleReport measured, SleepThrough(schedule, costs));
  panels.push_back(Panel(absl::StrCat(name, " measured"), schedule, std::move(measured)));
  return panels;
}

absl::StatusOr<std::vector<SchedulePanel>> PanelsOfFile(const std::string& path) {
  MEGATRON_ASSIGN_OR_RETURN(const std::string text, ReadFileToString(PosixFileSystem(), path));
  MEGATRON_ASSIGN_OR_RETURN(MeasuredSchedule measured, ParseTimelineText(text), _ << path);
  const Schedule& schedule = measured.schedule;
  MEGATRON_RETURN_IF_ERROR(CheckFlags(schedule.stages, schedule.microbatches, schedule.chunks));
  MEGATRON_ASSIGN_OR_RETURN(ScheduleReport predicted, CheckSchedule(schedule, MeanCosts(measured)),
                            _ << path);
  return std::vector<SchedulePanel>{
      Panel("predicted", schedule, std::move(predicted)),
      Panel("measured", schedule, SummarizeTimelines(std::move(measured.timelines)))};
}

absl::Status Draw(const std::vector<std::string>& arguments) {
  if (!arguments.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("unexpected argument '", arguments[0], "'"));
  }
  const std::string file = absl::GetFlag(FLAGS_measured);
  MEGATRON_ASSIGN_OR_RETURN(const std::vector<SchedulePanel> panels,
                            file.empty() ? PanelsOfFlags() : PanelsOfFile(file));
  const std::string output = absl::GetFlag(FLAGS_output);
  MEGATRON_RETURN_IF_ERROR(WriteFileAtomically(PosixFileSystem(), output, ScheduleSvg(panels)));
  for (const SchedulePanel& panel : panels) std::printf("%s\n", panel.title.c_str());
  std::printf("micro-batches held at once, by stage: %s\nwrote %s\n",
              absl::StrJoin(panels[0].report.in_flight, " ").c_str(), output.c_str());
  return absl::OkStatus();
}

}  // namespace
}  // namespace megatron

int main(int argc, char** argv) {
  return megatron::RunTool(argc, argv, "Draws a pipeline schedule: draw_schedule [flags]",
                           megatron::Draw);
}
