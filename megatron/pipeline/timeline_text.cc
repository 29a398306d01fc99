#include "megatron/pipeline/timeline_text.h"

#include <cmath>
#include <cstdint>
#include <sstream>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "megatron/base/status_macros.h"

namespace megatron {
namespace {

constexpr char kRoundRobin[] = "round-robin", kBackAndForth[] = "back-and-forth";
constexpr int kMost = 1 << 20;  // stages, chunks, micro-batches

absl::Status Wrong(size_t line, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("line ", line, ": ", what));
}

bool ParseCount(absl::string_view text, int least, int* value) {
  return absl::SimpleAtoi(text, value) && *value >= least && *value <= kMost;
}

// Reads an action like "I3.1".
bool ParseAction(absl::string_view text, Action* action) {
  const size_t kind = text.empty() ? text.npos : absl::string_view("FBIW").find(text[0]);
  if (kind == text.npos) return false;
  action->kind = static_cast<ActionKind>(kind);
  const std::vector<absl::string_view> numbers = absl::StrSplit(text.substr(1), '.');
  action->chunk = 0;
  return numbers.size() <= 2 && ParseCount(numbers[0], 0, &action->microbatch) &&
         (numbers.size() == 1 || ParseCount(numbers[1], 0, &action->chunk));
}

absl::Status ParseHead(absl::string_view line, Schedule* schedule) {
  const std::vector<absl::string_view> words = absl::StrSplit(line, ' ');
  if (words.size() != 5 || words[0] != "pipeline" || !ParseCount(words[1], 1, &schedule->stages) ||
      !ParseCount(words[2], 1, &schedule->chunks) ||
      !ParseCount(words[3], 1, &schedule->microbatches) ||
      (words[4] != kRoundRobin && words[4] != kBackAndForth)) {
    return Wrong(1, "expects 'pipeline STAGES CHUNKS MICROBATCHES ORDER'");
  }
  schedule->order = words[4] == kRoundRobin ? PartOrder::kRoundRobin : PartOrder::kBackAndForth;
  return absl::OkStatus();
}

}  // namespace

std::string TimelineText(const MeasuredSchedule& measured) {
  const Schedule& schedule = measured.schedule;
  std::string text = absl::StrFormat(
      "pipeline %d %d %d %s\n", schedule.stages, schedule.chunks, schedule.microbatches,
      schedule.order == PartOrder::kRoundRobin ? kRoundRobin : kBackAndForth);
  for (size_t stage = 0; stage < measured.timelines.size(); ++stage) {
    for (const TimedAction& timed : measured.timelines[stage]) {
      std::ostringstream action;
      action << timed.action;
      absl::StrAppendFormat(&text, "%d %s %.6f %.6f\n", stage, action.str(), timed.start,
                            timed.end);
    }
  }
  return text;
}

absl::StatusOr<MeasuredSchedule> ParseTimelineText(absl::string_view text) {
  std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
  if (lines.back().empty()) lines.pop_back();
  MeasuredSchedule measured;
  Schedule& schedule = measured.schedule;
  MEGATRON_RETURN_IF_ERROR(ParseHead(lines.empty() ? "" : lines[0], &schedule));
  // Room for more items than lines would be memory for nothing. Each factor is at most kMost.
  const int64_t items = int64_t{1} * schedule.stages * schedule.chunks * schedule.microbatches;
  if (items >= static_cast<int64_t>(lines.size())) {
    return Wrong(1, absl::StrCat("there are fewer actions than stages times chunks times "
                                 "micro-batches, ",
                                 items));
  }
  schedule.actions.resize(schedule.stages);
  measured.timelines.resize(schedule.stages);
  for (size_t i = 1; i < lines.size(); ++i) {
    const std::vector<absl::string_view> words = absl::StrSplit(lines[i], ' ');
    int stage = 0;
    TimedAction timed;
    if (words.size() != 4 || !ParseCount(words[0], 0, &stage) ||
        !ParseAction(words[1], &timed.action) || !absl::SimpleAtod(words[2], &timed.start) ||
        !absl::SimpleAtod(words[3], &timed.end)) {
      return Wrong(i + 1, "expects 'STAGE ACTION START END'");
    }
    if (stage >= schedule.stages) return Wrong(i + 1, absl::StrCat("there is no stage ", stage));
    if (timed.action.chunk >= schedule.chunks)
      return Wrong(i + 1, absl::StrCat("there is no chunk ", timed.action.chunk));
    if (timed.action.microbatch >= schedule.microbatches)
      return Wrong(i + 1, absl::StrCat("there is no micro-batch ", timed.action.microbatch));
    Timeline& timeline = measured.timelines[stage];
    const double before = timeline.empty() ? 0 : timeline.back().end;
    if (!(timed.start >= before && timed.end >= timed.start && timed.end < 1e9))
      return Wrong(i + 1, "an action begins before the one above it has ended");
    timeline.push_back(timed);
    schedule.actions[stage].push_back(timed.action);
  }
  return measured;
}

PartCosts MeanCosts(const MeasuredSchedule& measured) {
  struct Sums {
    double sum[4] = {}, count[4] = {};
    double Mean(ActionKind kind) const {
      const int i = static_cast<int>(kind);
      return count[i] == 0 ? 0 : sum[i] / count[i];
    }
  };
  const Schedule& schedule = measured.schedule;
  std::vector<Sums> parts(schedule.positions());
  for (int stage = 0; stage < schedule.stages; ++stage) {
    for (const TimedAction& timed : measured.timelines[stage]) {
      Sums& part = parts[schedule.PositionAt(stage, timed.action.chunk)];
      part.sum[static_cast<int>(timed.action.kind)] += timed.end - timed.start;
      part.count[static_cast<int>(timed.action.kind)] += 1;
    }
  }
  std::vector<ActionCosts> costs;
  for (const Sums& part : parts) {
    const double whole = part.Mean(ActionKind::kBackward) / 2;
    costs.push_back({part.Mean(ActionKind::kForward), whole + part.Mean(ActionKind::kBackwardInput),
                     whole + part.Mean(ActionKind::kBackwardWeight)});
  }
  return PartCosts(std::move(costs));
}

}  // namespace megatron
