#include "megatron/pipeline/schedule.h"

#include <algorithm>

#include "glog/logging.h"

namespace megatron {
namespace {

void CheckStage(int stage, int stages, int microbatches) {
  CHECK(stage >= 0 && stage < stages) << stage << " of " << stages;
  CHECK_GE(microbatches, 1);
}

// Returns `warmup` forwards, then one forward and one backward in turn, then the remaining
// backwards.
std::vector<Action> OneForwardOneBackward(int warmup, const std::vector<Action>& forwards,
                                          const std::vector<Action>& backwards) {
  const int count = static_cast<int>(forwards.size());
  warmup = std::min(warmup, count);
  std::vector<Action> actions(forwards.begin(), forwards.begin() + warmup);
  for (int i = 0; i < count; ++i) {
    if (warmup + i < count) actions.push_back(forwards[warmup + i]);
    actions.push_back(backwards[i]);
  }
  return actions;
}

InterleavedOptions WithGroup(InterleavedOptions options) {
  CHECK_GE(options.chunks, 1);
  CHECK_GE(options.group, 0);
  if (options.group == 0) options.group = options.stages;
  return options;
}

// The order in which micro-batches pass the chunks of a stage: groups of micro-batches, within a
// group one chunk after the other; backward through the chunks in reverse.
std::vector<Action> InterleavedOrder(ActionKind kind, const InterleavedOptions& options) {
  std::vector<Action> order;
  for (int first = 0; first < options.microbatches; first += options.group) {
    const int end = std::min(first + options.group, options.microbatches);
    for (int i = 0; i < options.chunks; ++i) {
      const int chunk = kind == ActionKind::kForward ? i : options.chunks - 1 - i;
      for (int microbatch = first; microbatch < end; ++microbatch) {
        order.push_back({kind, microbatch, chunk});
      }
    }
  }
  return order;
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const Action& action) {
  out << "FBIW"[static_cast<int>(action.kind)] << action.microbatch;
  if (action.chunk != 0) out << "." << action.chunk;
  return out;
}

int PositionOf(PartOrder order, int stages, const Place& place) {
  const bool back = order == PartOrder::kBackAndForth && place.chunk % 2 == 1;
  return place.chunk * stages + (back ? stages - 1 - place.stage : place.stage);
}

Place PlaceOf(PartOrder order, int stages, int position) {
  const int chunk = position / stages;
  // Going back is its own inverse.
  return {PositionOf(order, stages, {position % stages, chunk}) - chunk * stages, chunk};
}

ActionCosts PartCosts::Mean() const {
  ActionCosts mean = {0, 0, 0};
  const double parts = static_cast<double>(costs_.size());
  for (const ActionCosts& costs : costs_) {
    mean.forward += costs.forward / parts;
    mean.backward_input += costs.backward_input / parts;
    mean.backward_weight += costs.backward_weight / parts;
  }
  return mean;
}

std::vector<Action> PlanGPipe(int stage, int stages, int microbatches) {
  CheckStage(stage, stages, microbatches);
  std::vector<Action> actions;
  for (ActionKind kind : {ActionKind::kForward, ActionKind::kBackward}) {
    for (int i = 0; i < microbatches; ++i) actions.push_back({kind, i, 0});
  }
  return actions;
}

std::vector<Action> PlanInterleaved(int stage, InterleavedOptions options) {
  CheckStage(stage, options.stages, options.microbatches);
  options = WithGroup(options);
  const int after = options.stages - 1 - stage;  // stages behind this one
  // The first backward must wait for the last chunk's forward on the last stage: (chunks - 1)
  // groups and the way there. Interleaving doubles the way, as each hop takes one action for a
  // chunk on either side of it.
  const int warmup = options.chunks == 1 ? after : 2 * after + (options.chunks - 1) * options.group;
  return OneForwardOneBackward(warmup, InterleavedOrder(ActionKind::kForward, options),
                               InterleavedOrder(ActionKind::kBackward, options));
}

std::vector<Action> PlanZeroBubble(int stage, int stages, int microbatches) {
  CheckStage(stage, stages, microbatches);
  std::vector<Action> actions;
  int forwards = 0, weights = 0;
  const auto forward = [&] {
    if (forwards < microbatches) actions.push_back({ActionKind::kForward, forwards++, 0});
  };
  for (int i = 0; i < stages - stage; ++i) forward();
  for (int i = 0; i < microbatches; ++i) {
    actions.push_back({ActionKind::kBackwardInput, i, 0});
    if (i >= stage) actions.push_back({ActionKind::kBackwardWeight, weights++, 0});
    forward();
  }
  while (weights < microbatches) actions.push_back({ActionKind::kBackwardWeight, weights++, 0});
  return actions;
}

std::vector<Action> PlanForwards(int stage, const InterleavedOptions& options) {
  CheckStage(stage, options.stages, options.microbatches);
  return InterleavedOrder(ActionKind::kForward, WithGroup(options));
}

Schedule GPipeSchedule(int stages, int microbatches) {
  Schedule schedule{stages, 1, microbatches};
  for (int s = 0; s < stages; ++s) schedule.actions.push_back(PlanGPipe(s, stages, microbatches));
  return schedule;
}

Schedule InterleavedSchedule(const InterleavedOptions& options) {
  Schedule schedule{options.stages, options.chunks, options.microbatches};
  for (int s = 0; s < options.stages; ++s) schedule.actions.push_back(PlanInterleaved(s, options));
  return schedule;
}

Schedule ZeroBubbleSchedule(int stages, int microbatches) {
  Schedule schedule{stages, 1, microbatches};
  for (int s = 0; s < stages; ++s) {
    schedule.actions.push_back(PlanZeroBubble(s, stages, microbatches));
  }
  return schedule;
}

Schedule ForwardSchedule(const InterleavedOptions& options, PartOrder order) {
  Schedule schedule{options.stages, options.chunks, options.microbatches};
  schedule.order = order;
  for (int s = 0; s < options.stages; ++s) schedule.actions.push_back(PlanForwards(s, options));
  return schedule;
}

}  // namespace megatron
