#include "megatron/pipeline/stage_plan.h"

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include "glog/logging.h"
#include "megatron/pipeline/check_schedule.h"

namespace megatron {
namespace {

// A message on its way, seen from outside.
struct Passage {
  double time = 0;
  Place from, to;
  bool gradient = false;
  int microbatch = 0;

  // The common order: at one time any order that all stages share will do.
  auto Key() const { return std::make_tuple(time, from.stage, from.chunk, gradient, microbatch); }
};

// Numbers in use, and how many there ever were.
class SlotPool {
 public:
  int Take() {
    const auto free = std::find(used_.begin(), used_.end(), false);
    const int slot = static_cast<int>(free - used_.begin());
    if (free == used_.end()) used_.push_back(false);
    used_[slot] = true;
    return slot;
  }
  void Give(int slot) { used_[slot] = false; }
  int count() const { return static_cast<int>(used_.size()); }

 private:
  std::vector<bool> used_;
};

// Slots of one kind, by chunk, and the micro-batches that live in them.
class SlotTable {
 public:
  explicit SlotTable(int chunks) : pools_(chunks) {}

  int Take(int microbatch, int chunk) { return slots_[{microbatch, chunk}] = pools_[chunk].Take(); }
  int Find(int microbatch, int chunk) const {
    const auto found = slots_.find({microbatch, chunk});
    return found == slots_.end() ? -1 : found->second;
  }
  void Give(int microbatch, int chunk) {
    const auto found = slots_.find({microbatch, chunk});
    if (found == slots_.end()) return;
    pools_[chunk].Give(found->second);
    slots_.erase(found);
  }
  std::vector<int> Counts() const {
    std::vector<int> counts;
    for (const SlotPool& pool : pools_) counts.push_back(pool.count());
    return counts;
  }

 private:
  std::vector<SlotPool> pools_;
  std::map<std::pair<int, int>, int> slots_;
};

class Planner {
 public:
  // `report` is that of the schedule.
  Planner(const Schedule& schedule, int stage, const ScheduleReport& report)
      : schedule_(schedule),
        stage_(stage),
        report_(report),
        items_(schedule.chunks),
        inputs_(schedule.chunks),
        gradients_(schedule.chunks),
        deferred_(schedule.chunks) {}

  StagePlan Plan() {
    CollectPassages();
    // Sums of the same costs in another order differ by their rounding.
    const double one_moment = ShortestAction(report_) / 1024;
    auto passage = passages_.begin();
    for (const TimedAction& timed : report_.stages[stage_]) {
      const auto end = std::find_if(passage, passages_.end(), [&](const Passage& p) {
        return p.time > timed.start + one_moment;
      });
      AddExchange(passage, end);
      passage = end;
      AddAction(timed.action);
    }
    AddExchange(passage, passages_.end());
    plan_.stages = schedule_.stages;
    plan_.stage = stage_;
    plan_.microbatches = schedule_.microbatches;
    plan_.first_trained = schedule_.first_trained;
    for (int chunk = 0; chunk < schedule_.chunks; ++chunk)
      plan_.positions.push_back(schedule_.PositionAt(stage_, chunk));
    plan_.slots = items_.Counts();
    plan_.input_slots = inputs_.Counts();
    plan_.gradient_slots = gradients_.Counts();
    plan_.deferred_slots = deferred_.Counts();
    return std::move(plan_);
  }

 private:
  using Passages = std::vector<Passage>;

  static double ShortestAction(const ScheduleReport& report) {
    double shortest = std::numeric_limits<double>::infinity();
    for (const Timeline& stage : report.stages) {
      for (const TimedAction& timed : stage) {
        if (timed.end > timed.start) shortest = std::min(shortest, timed.end - timed.start);
      }
    }
    return shortest;
  }

  // Returns false at the ends of the model.
  bool Neighbour(Place place, int step, Place* neighbour) const {
    const int position = PositionOf(place) + step;
    if (position < 0 || position >= schedule_.positions()) return false;
    *neighbour = PlaceOf(schedule_.order, schedule_.stages, position);
    return true;
  }

  // The destination of an action's result.
  bool Destination(Place place, ActionKind kind, Place* to) const {
    if (kind == ActionKind::kForward) return Neighbour(place, 1, to);
    if (kind == ActionKind::kBackwardWeight) return false;
    return PositionOf(place) > schedule_.first_trained && Neighbour(place, -1, to);
  }

  int PositionOf(Place place) const { return schedule_.PositionAt(place.stage, place.chunk); }
  bool HasBackward(int chunk) const {
    return PositionOf({stage_, chunk}) >= schedule_.first_trained;
  }

  // All messages to and from this stage, in the common order.
  void CollectPassages() {
    for (int stage = 0; stage < schedule_.stages; ++stage) {
      for (const TimedAction& timed : report_.stages[stage]) {
        const Place from = {stage, timed.action.chunk};
        Place to;
        if (!Destination(from, timed.action.kind, &to)) continue;
        if (to.stage == stage || (to.stage != stage_ && stage != stage_)) continue;
        passages_.push_back({timed.end, from, to, timed.action.kind != ActionKind::kForward,
                             timed.action.microbatch});
      }
    }
    std::sort(passages_.begin(), passages_.end(),
              [](const Passage& a, const Passage& b) { return a.Key() < b.Key(); });
  }

  void AddExchange(Passages::const_iterator begin, Passages::const_iterator end) {
    if (begin == end) return;
    Step step;
    for (auto p = begin; p != end; ++p) {
      if (p->from.stage == stage_) {
        step.sends.push_back({p->to.stage, p->gradient, p->microbatch, p->from.chunk, -1});
      } else {
        SlotTable& table = p->gradient ? gradients_ : inputs_;
        step.receives.push_back({p->from.stage, p->gradient, p->microbatch, p->to.chunk,
                                 table.Take(p->microbatch, p->to.chunk)});
      }
    }
    plan_.steps.push_back(std::move(step));
  }

  void AddAction(const Action& action) {
    Step step;
    step.action = action;
    const auto [kind, microbatch, chunk] = action;
    step.slot = kind == ActionKind::kForward ? items_.Take(microbatch, chunk)
                                             : items_.Find(microbatch, chunk);
    const bool defers = kind == ActionKind::kBackwardInput && HasBackward(chunk);
    step.deferred_slot =
        defers ? deferred_.Take(microbatch, chunk) : deferred_.Find(microbatch, chunk);
    step.input_slot = inputs_.Find(microbatch, chunk);
    step.gradient_slot = gradients_.Find(microbatch, chunk);
    Place to;
    if (Destination({stage_, chunk}, kind, &to) && to.stage == stage_) {
      SlotTable& table = kind == ActionKind::kForward ? inputs_ : gradients_;
      step.result_slot = table.Take(microbatch, to.chunk);
    }
    plan_.steps.push_back(std::move(step));
    if (kind != ActionKind::kForward) gradients_.Give(microbatch, chunk);
    if (!IsLast(action)) return;
    for (SlotTable* table : {&items_, &inputs_, &deferred_}) table->Give(microbatch, chunk);
  }

  // Returns whether nothing of the item comes after.
  bool IsLast(const Action& action) const {
    if (action.kind == ActionKind::kForward) return forward_only_ || !HasBackward(action.chunk);
    return action.kind != ActionKind::kBackwardInput;
  }

  bool ForwardOnly() const {
    const std::vector<Action>& actions = schedule_.actions[stage_];
    return std::all_of(actions.begin(), actions.end(),
                       [](const Action& a) { return a.kind == ActionKind::kForward; });
  }

  const Schedule& schedule_;
  const int stage_;
  const ScheduleReport& report_;
  const bool forward_only_ = ForwardOnly();
  SlotTable items_, inputs_, gradients_, deferred_;
  Passages passages_;
  StagePlan plan_;
};

ScheduleReport CheckedReport(const Schedule& schedule, const PartCosts& costs) {
  auto report = CheckSchedule(schedule, costs);
  CHECK(report.ok()) << report.status();
  return *std::move(report);
}

}  // namespace

StagePlan PlanStage(const Schedule& schedule, int stage, const PartCosts& costs) {
  CHECK(stage >= 0 && stage < schedule.stages) << stage << " of " << schedule.stages;
  return Planner(schedule, stage, CheckedReport(schedule, costs)).Plan();
}

std::vector<StagePlan> PlanStages(const Schedule& schedule, const PartCosts& costs) {
  const ScheduleReport report = CheckedReport(schedule, costs);
  std::vector<StagePlan> plans;
  for (int stage = 0; stage < schedule.stages; ++stage)
    plans.push_back(Planner(schedule, stage, report).Plan());
  return plans;
}

}  // namespace megatron
