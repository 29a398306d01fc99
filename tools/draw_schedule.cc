// Draws a pipeline schedule, and says how long it is idle and how much it holds in memory.
//
//   draw_schedule --schedule=zero_bubble --stages=4 --microbatches=8 --output=zb.svg

#include <algorithm>
#include <cstdio>
#include <string>
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
#include "megatron/pipeline/schedule.h"
#include "tools/schedule_svg.h"
#include "tools/tool_main.h"

ABSL_FLAG(std::string, schedule, "1f1b", "gpipe, 1f1b, interleaved or zero_bubble.");
ABSL_FLAG(int, stages, 4, "Ranks of the pipeline.");
ABSL_FLAG(int, microbatches, 8, "Micro-batches of a step.");
ABSL_FLAG(int, chunks, 2, "Parts of the model on each stage; interleaved alone has more than one.");
ABSL_FLAG(double, forward, 1, "What a chunk's forward costs, in any unit.");
ABSL_FLAG(double, backward_input, 1, "What the gradient of its inputs costs.");
ABSL_FLAG(double, backward_weight, 1, "What the gradient of its weights costs.");
ABSL_FLAG(std::string, output, "schedule.svg", "The picture.");

namespace megatron {
namespace {

constexpr int kMost = 1024;                // stages, micro-batches, chunks
constexpr int64_t kMostActions = 100'000;  // beyond, nobody sees anything

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
  return absl::OkStatus();
}

absl::StatusOr<Schedule> MakeSchedule(const std::string& name, int stages, int microbatches,
                                      int chunks) {
  if (name == "gpipe") return GPipeSchedule(stages, microbatches);
  if (name == "1f1b") return OneForwardOneBackwardSchedule(stages, microbatches);
  if (name == "zero_bubble") return ZeroBubbleSchedule(stages, microbatches);
  if (name == "interleaved") {
    const int rest = microbatches % stages;
    if (microbatches > stages && rest != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("interleaving wants micro-batches in whole groups of the ", stages,
                       " stages, and ", microbatches, " leave ", rest, " over"));
    }
    return InterleavedSchedule({stages, microbatches, chunks, 0});
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "unknown schedule '", name, "'; there are gpipe, 1f1b, interleaved and zero_bubble"));
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

absl::Status Draw(const std::vector<std::string>& arguments) {
  if (!arguments.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("unexpected argument '", arguments[0], "'"));
  }
  const std::string name = absl::GetFlag(FLAGS_schedule);
  const int stages = absl::GetFlag(FLAGS_stages);
  const int microbatches = absl::GetFlag(FLAGS_microbatches);
  const int chunks = name == "interleaved" ? absl::GetFlag(FLAGS_chunks) : 1;
  MEGATRON_RETURN_IF_ERROR(CheckFlags(stages, microbatches, chunks));
  MEGATRON_ASSIGN_OR_RETURN(const ActionCosts costs, Costs());
  MEGATRON_ASSIGN_OR_RETURN(const Schedule schedule,
                            MakeSchedule(name, stages, microbatches, chunks));
  MEGATRON_ASSIGN_OR_RETURN(const ScheduleReport report, CheckSchedule(schedule, costs));

  const std::string title = absl::StrFormat(
      "%s, %d stages, %d micro-batches%s: bubble %.1f %%", name, stages, microbatches,
      chunks > 1 ? absl::StrFormat(", %d chunks", chunks) : "", 100 * report.bubble);
  const std::string output = absl::GetFlag(FLAGS_output);
  MEGATRON_RETURN_IF_ERROR(
      WriteFileAtomically(PosixFileSystem(), output, ScheduleSvg(report, title)));
  std::printf("%s\nmicro-batches held at once, by stage: %s\nwrote %s\n", title.c_str(),
              absl::StrJoin(report.in_flight, " ").c_str(), output.c_str());
  return absl::OkStatus();
}

}  // namespace
}  // namespace megatron

int main(int argc, char** argv) {
  return megatron::RunTool(argc, argv, "Draws a pipeline schedule: draw_schedule [flags]",
                           megatron::Draw);
}
