#include "megatron/pipeline/zero_bubble_v.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <queue>
#include <utility>
#include <vector>

#include "glog/logging.h"

namespace megatron {
namespace {

// Whole ticks, so that equal sums of costs are equal.
using Ticks = int64_t;
constexpr Ticks kNever = std::numeric_limits<Ticks>::max();
constexpr double kTicksPerForward = 1000;

constexpr ActionKind kF = ActionKind::kForward, kI = ActionKind::kBackwardInput,
                     kW = ActionKind::kBackwardWeight;

// The order in which a stage prefers the actions that it could do; when it can do none of these, it
// does the weights' parts.
struct Choice {
  ActionKind kind = kF;
  int chunk = 0;

  friend bool operator<(const Choice& a, const Choice& b) {
    return std::make_pair(a.kind, a.chunk) < std::make_pair(b.kind, b.chunk);
  }
};
using Preferences = std::array<Choice, 4>;

Ticks ToTicks(double cost, const ActionCosts& costs) {
  return std::max<Ticks>(1, std::llround(cost / costs.forward * kTicksPerForward));
}

class Game {
 public:
  Game(int stages, int microbatches, const ActionCosts& costs, const Preferences& preferences)
      : stages_(stages),
        microbatches_(microbatches),
        forward_(ToTicks(costs.forward, costs)),
        input_(ToTicks(costs.backward_input, costs)),
        weight_(ToTicks(costs.backward_weight, costs)),
        preferences_(preferences),
        stage_(stages),
        forwarded_(Cells(), kNever),
        backwarded_(Cells(), kNever) {
    schedule_.stages = stages;
    schedule_.chunks = 2;
    schedule_.microbatches = microbatches;
    schedule_.order = PartOrder::kBackAndForth;
    schedule_.actions.resize(stages);
  }

  // The time at which everything is done; kNever if the stages came to wait for each other.
  Ticks Play() {
    size_t left = 3 * Cells();
    events_.push(0);
    Ticks now = 0;
    for (; left > 0 && !events_.empty(); NextEvent()) {
      now = events_.top();
      for (int s = 0; s < stages_; ++s) {
        if (stage_[s].free <= now && Move(s, now)) --left;
      }
    }
    if (left > 0) return kNever;
    for (const StageState& stage : stage_) now = std::max(now, stage.free);
    return now;
  }

  Schedule Take() { return std::move(schedule_); }

 private:
  struct StageState {
    std::array<int, 2> forwards{}, backwards{}, weights{};  // done so far, by chunk
    int held = 0;
    Ticks free = 0;
  };

  size_t Cells() const { return static_cast<size_t>(2) * stages_ * microbatches_; }
  size_t Cell(int position, int microbatch) const {
    return static_cast<size_t>(position) * microbatches_ + microbatch;
  }

  void NextEvent() {
    const Ticks now = events_.top();
    while (!events_.empty() && events_.top() == now) events_.pop();
  }

  bool Move(int s, Ticks now) {
    for (const Choice& choice : preferences_) {
      if (IsReady(s, choice, now)) return Do(s, choice, now);
    }
    for (int chunk : {1, 0}) {
      if (stage_[s].weights[chunk] < stage_[s].backwards[chunk]) return Do(s, {kW, chunk}, now);
    }
    return false;
  }

  bool IsReady(int s, const Choice& choice, Ticks now) const {
    const StageState& stage = stage_[s];
    const int position = schedule_.PositionAt(s, choice.chunk);
    if (choice.kind == kF) {
      const int next = stage.forwards[choice.chunk];
      return next < microbatches_ && stage.held < 2 * stages_ &&
             (position == 0 || forwarded_[Cell(position - 1, next)] <= now);
    }
    const int next = stage.backwards[choice.chunk];
    return next < stage.forwards[choice.chunk] &&
           (position == 2 * stages_ - 1 || backwarded_[Cell(position + 1, next)] <= now);
  }

  bool Do(int s, const Choice& choice, Ticks now) {
    StageState& stage = stage_[s];
    const int position = schedule_.PositionAt(s, choice.chunk);
    int microbatch = 0;
    if (choice.kind == kF) {
      microbatch = stage.forwards[choice.chunk]++;
      forwarded_[Cell(position, microbatch)] = stage.free = now + forward_;
      ++stage.held;
    } else if (choice.kind == kI) {
      microbatch = stage.backwards[choice.chunk]++;
      backwarded_[Cell(position, microbatch)] = stage.free = now + input_;
    } else {
      microbatch = stage.weights[choice.chunk]++;
      stage.free = now + weight_;
      --stage.held;
    }
    schedule_.actions[s].push_back({choice.kind, microbatch, choice.chunk});
    events_.push(stage.free);
    return true;
  }

  const int stages_, microbatches_;
  const Ticks forward_, input_, weight_;
  const Preferences preferences_;
  std::vector<StageState> stage_;
  std::vector<Ticks> forwarded_, backwarded_;  // times, by position and micro-batch
  std::priority_queue<Ticks, std::vector<Ticks>, std::greater<Ticks>> events_;
  Schedule schedule_;
};

// Returns the time that the order takes with these costs.
Ticks TimeOf(const Schedule& schedule, const ActionCosts& costs) {
  const Ticks forward = ToTicks(costs.forward, costs), input = ToTicks(costs.backward_input, costs),
              weight = ToTicks(costs.backward_weight, costs);
  const size_t cells = size_t(schedule.positions()) * size_t(schedule.microbatches);
  std::vector<Ticks> forwarded(cells, kNever), backwarded(cells, kNever);
  std::vector<Ticks> free(schedule.stages, 0);
  std::vector<size_t> next(schedule.stages, 0);
  size_t left = 3 * cells;
  while (left > 0) {
    const size_t before = left;
    for (int stage = 0; stage < schedule.stages; ++stage) {
      for (; next[stage] < schedule.actions[stage].size(); ++next[stage], --left) {
        const Action& action = schedule.actions[stage][next[stage]];
        const int position = schedule.PositionAt(stage, action.chunk);
        const size_t cell = size_t(position) * schedule.microbatches + action.microbatch;
        if (action.kind == kW) {
          free[stage] += weight;
          continue;
        }
        const bool is_forward = action.kind == kF;
        const bool is_end = is_forward ? position == 0 : position + 1 == schedule.positions();
        const size_t source =
            is_forward ? cell - schedule.microbatches : cell + schedule.microbatches;
        const Ticks ready = is_end ? 0 : (is_forward ? forwarded : backwarded)[source];
        if (ready == kNever) break;
        free[stage] = std::max(free[stage], ready) + (is_forward ? forward : input);
        (is_forward ? forwarded : backwarded)[cell] = free[stage];
      }
    }
    CHECK_LT(left, before);
  }
  return *std::max_element(free.begin(), free.end());
}

// A game that believes in other costs may find an order that ends sooner with the right ones, since
// each stage only ever does what it prefers at the moment. Large games are played once.
std::vector<ActionCosts> CostsToPlayWith(int stages, int microbatches, const ActionCosts& costs) {
  std::vector<ActionCosts> believed = {costs};
  if (int64_t{stages} * microbatches > kMostCellsOfZeroBubbleV) return believed;
  const ActionCosts others[] = {{1, 1, 1},     {1, 1, 0.5}, {1, 1.5, 0.75}, {1, 1.5, 1},
                                {1, 1.5, 1.5}, {1, 2, 1},   {1, 2, 1.5}};
  believed.insert(believed.end(), std::begin(others), std::end(others));
  return believed;
}

}  // namespace

Schedule ZeroBubbleVSchedule(int stages, int microbatches, const ActionCosts& costs) {
  CHECK_GE(stages, 1);
  CHECK_GE(microbatches, 1);
  Ticks soonest = kNever;
  Schedule best;
  for (const ActionCosts& believed : CostsToPlayWith(stages, microbatches, costs)) {
    Preferences preferences = {{{kF, 0}, {kF, 1}, {kI, 0}, {kI, 1}}};
    do {
      Game game(stages, microbatches, believed, preferences);
      if (game.Play() == kNever) continue;
      Schedule found = game.Take();
      const Ticks time = TimeOf(found, costs);
      if (time >= soonest) continue;
      soonest = time;
      best = std::move(found);
    } while (std::next_permutation(preferences.begin(), preferences.end()));
  }
  CHECK_LT(soonest, kNever) << stages << " stages, " << microbatches << " micro-batches";
  return best;
}

}  // namespace megatron
