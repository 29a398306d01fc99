#include "megatron/pipeline/check_schedule.h"

#include <algorithm>
#include <limits>
#include <sstream>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "megatron/base/status_macros.h"

namespace megatron {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

std::string Text(const Action& action) {
  std::ostringstream out;
  out << action;
  return out.str();
}

// The time at which each micro-batch leaves each position of the model.
struct Ends {
  double forward = kNever;
  double backward_input = kNever;
  double backward_weight = kNever;
};

class Player {
 public:
  Player(const Schedule& schedule, const PartCosts& costs)
      : schedule_(schedule),
        costs_(costs),
        positions_(schedule.positions()),
        ends_(static_cast<size_t>(positions_) * schedule.microbatches),
        next_(schedule.stages),
        stages_(schedule.stages) {}

  absl::StatusOr<ScheduleReport> Play() {
    MEGATRON_RETURN_IF_ERROR(CheckForm());
    for (bool progress = true; progress;) {
      progress = false;
      for (int stage = 0; stage < schedule_.stages; ++stage) {
        MEGATRON_ASSIGN_OR_RETURN(const bool ran, PlayWhatIsReady(stage));
        progress = progress || ran;
      }
    }
    MEGATRON_RETURN_IF_ERROR(CheckAllPlayed());
    MEGATRON_RETURN_IF_ERROR(CheckComplete());
    return SummarizeTimelines(std::move(stages_));
  }

 private:
  absl::Status CheckForm() const {
    if (schedule_.stages < 1 || schedule_.chunks < 1 || schedule_.microbatches < 1 ||
        static_cast<int>(schedule_.actions.size()) != schedule_.stages) {
      return absl::FailedPreconditionError("a schedule needs stages, each with its actions");
    }
    for (int stage = 0; stage < schedule_.stages; ++stage) {
      for (const Action& action : schedule_.actions[stage]) {
        if (action.microbatch >= 0 && action.microbatch < schedule_.microbatches &&
            action.chunk >= 0 && action.chunk < schedule_.chunks) {
          continue;
        }
        return Wrong(stage, action, "has no such micro-batch or chunk");
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<bool> PlayWhatIsReady(int stage) {
    const std::vector<Action>& actions = schedule_.actions[stage];
    Timeline& played = stages_[stage];
    bool ran = false;
    for (; next_[stage] < actions.size(); ++next_[stage]) {
      const Action& action = actions[next_[stage]];
      MEGATRON_RETURN_IF_ERROR(CheckOrder(stage, action));
      const double ready = ReadyTime(stage, action);
      if (ready == kNever) break;
      const double start = std::max(ready, played.empty() ? 0 : played.back().end);
      const double end = start + Cost(stage, action);
      played.push_back({action, start, end});
      SetEnd(stage, action, end);
      ran = true;
    }
    return ran;
  }

  double Cost(int stage, const Action& action) const {
    const int position = Position(stage, action.chunk);
    const bool is_empty = action.kind != ActionKind::kForward && position < schedule_.first_trained;
    return is_empty ? 0 : CostOf(action.kind, costs_.At(position));
  }

  // Checks the action against what the stage itself did before.
  absl::Status CheckOrder(int stage, const Action& action) {
    const Ends& own = At(Position(stage, action.chunk), action.microbatch);
    const bool forwarded = own.forward != kNever;
    const bool backwarded = own.backward_input != kNever;
    switch (action.kind) {
      case ActionKind::kForward:
        return forwarded ? Wrong(stage, action, "is forwarded twice") : absl::OkStatus();
      case ActionKind::kBackward:
      case ActionKind::kBackwardInput:
        if (!forwarded) return Wrong(stage, action, "comes before its forward");
        return backwarded ? Wrong(stage, action, "is backwarded twice") : absl::OkStatus();
      case ActionKind::kBackwardWeight:
        if (!backwarded) return Wrong(stage, action, "comes before its input's backward");
        return own.backward_weight != kNever ? Wrong(stage, action, "is backwarded twice")
                                             : absl::OkStatus();
    }
    return absl::OkStatus();
  }

  // The time at which the tensors that the action needs from other stages are there.
  double ReadyTime(int stage, const Action& action) {
    const int position = Position(stage, action.chunk);
    if (action.kind == ActionKind::kForward) {
      return position == 0 ? 0 : At(position - 1, action.microbatch).forward;
    }
    if (action.kind == ActionKind::kBackwardWeight || position == positions_ - 1) return 0;
    return At(position + 1, action.microbatch).backward_input;
  }

  void SetEnd(int stage, const Action& action, double end) {
    Ends& ends = At(Position(stage, action.chunk), action.microbatch);
    if (action.kind == ActionKind::kForward) {
      ends.forward = end;
    } else {
      has_backward_ = true;
    }
    if (action.kind == ActionKind::kBackward || action.kind == ActionKind::kBackwardInput) {
      ends.backward_input = end;
    }
    if (action.kind == ActionKind::kBackward || action.kind == ActionKind::kBackwardWeight) {
      ends.backward_weight = end;
    }
  }

  absl::Status CheckAllPlayed() const {
    std::string waiting;
    for (int stage = 0; stage < schedule_.stages; ++stage) {
      if (next_[stage] == schedule_.actions[stage].size()) continue;
      absl::StrAppend(&waiting, "; stage ", stage, " at ",
                      Text(schedule_.actions[stage][next_[stage]]));
    }
    if (waiting.empty()) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat("stages wait for ever", waiting));
  }

  absl::Status CheckComplete() {
    for (int position = 0; position < positions_; ++position) {
      for (int microbatch = 0; microbatch < schedule_.microbatches; ++microbatch) {
        const Ends& ends = At(position, microbatch);
        if (ends.forward != kNever && (!has_backward_ || ends.backward_weight != kNever)) continue;
        const ActionKind missing =
            ends.forward == kNever ? ActionKind::kForward : ActionKind::kBackward;
        const Place place = PlaceOf(schedule_.order, schedule_.stages, position);
        return Wrong(place.stage, {missing, microbatch, place.chunk}, "is missing");
      }
    }
    return absl::OkStatus();
  }

  absl::Status Wrong(int stage, const Action& action, const char* what) const {
    return absl::FailedPreconditionError(
        absl::StrCat(Text(action), " of stage ", stage, " ", what));
  }
  int Position(int stage, int chunk) const { return schedule_.PositionAt(stage, chunk); }
  Ends& At(int position, int microbatch) {
    return ends_[static_cast<size_t>(position) * schedule_.microbatches + microbatch];
  }

  const Schedule& schedule_;
  const PartCosts costs_;
  const int positions_;
  std::vector<Ends> ends_;
  std::vector<size_t> next_;  // one entry a stage: its first action that was not played
  bool has_backward_ = false;
  std::vector<Timeline> stages_;
};

bool HasBackward(const std::vector<Timeline>& stages) {
  for (const Timeline& stage : stages) {
    for (const TimedAction& timed : stage) {
      if (timed.action.kind != ActionKind::kForward) return true;
    }
  }
  return false;
}

// A work item of a schedule without backwards is done when it is forwarded.
int MostInFlight(const Timeline& stage, bool has_backward) {
  if (!has_backward) return 1;
  int live = 0, most = 0;
  for (const TimedAction& timed : stage) {
    if (timed.action.kind == ActionKind::kForward) {
      most = std::max(most, ++live);
    } else if (timed.action.kind != ActionKind::kBackwardInput) {
      --live;
    }
  }
  return most;
}

}  // namespace

double CostOf(ActionKind kind, const ActionCosts& costs) {
  switch (kind) {
    case ActionKind::kForward:
      return costs.forward;
    case ActionKind::kBackward:
      return costs.backward_input + costs.backward_weight;
    case ActionKind::kBackwardInput:
      return costs.backward_input;
    case ActionKind::kBackwardWeight:
      return costs.backward_weight;
  }
  return 0;
}

ScheduleReport SummarizeTimelines(std::vector<Timeline> stages) {
  ScheduleReport report;
  const bool has_backward = HasBackward(stages);
  double busiest = 0;
  for (const Timeline& stage : stages) {
    double busy = 0;
    for (const TimedAction& timed : stage) {
      busy += timed.end - timed.start;
      report.time = std::max(report.time, timed.end);
    }
    busiest = std::max(busiest, busy);
    report.in_flight.push_back(MostInFlight(stage, has_backward));
  }
  report.bubble = busiest == 0 ? 0 : report.time / busiest - 1;
  report.stages = std::move(stages);
  return report;
}

absl::StatusOr<ScheduleReport> CheckSchedule(const Schedule& schedule, const PartCosts& costs) {
  return Player(schedule, costs).Play();
}

}  // namespace megatron
