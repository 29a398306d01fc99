#include "megatron/pipeline/stage_plan.h"

#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/pipeline/zero_bubble_v.h"

namespace megatron {
namespace {

// Plays the plans of all stages with exchanges that wait for every partner, which is the strictest
// backend there can be, and follows each piece of data through its slots.
class PlanPlayer {
 public:
  explicit PlanPlayer(const Schedule& schedule) : schedule_(schedule), at_(schedule.stages) {
    for (int s = 0; s < schedule.stages; ++s) plans_.push_back(PlanStage(schedule, s));
    open_.resize(schedule.stages);
    items_.resize(schedule.stages);
    inputs_.resize(schedule.stages);
    gradients_.resize(schedule.stages);
    deferred_.resize(schedule.stages);
    for (int s = 0; s < schedule.stages; ++s) Open(s);
  }

  // Returns what went wrong, or nothing.
  std::string Play() {
    for (bool progress = true; progress;) {
      progress = false;
      for (int s = 0; s < schedule_.stages; ++s) {
        while (at_[s] < plans_[s].steps.size()) {
          const Step& step = plans_[s].steps[at_[s]];
          if (step.is_exchange()) {
            if (!Match(s)) break;
          } else {
            Run(s, step);
          }
          ++at_[s];
          Open(s);
          progress = true;
        }
      }
    }
    for (int s = 0; s < schedule_.stages; ++s) {
      if (at_[s] < plans_[s].steps.size()) return "stage " + std::to_string(s) + " waits for ever";
      for (const Slots* slots : {&items_[s], &inputs_[s], &gradients_[s], &deferred_[s]}) {
        if (!slots->empty()) return "a slot was never given back";
      }
      if (actions_[s] != schedule_.actions[s]) return "not the schedule's actions";
    }
    return error_;
  }

 private:
  // The micro-batch in each slot, by chunk and slot.
  using Slots = std::map<std::pair<int, int>, int>;
  struct Pending {
    std::deque<Message> sends, receives;
  };

  void Fail(const std::string& what) {
    if (error_.empty()) error_ = what;
  }

  void Open(int s) {
    if (at_[s] >= plans_[s].steps.size()) return;
    const Step& step = plans_[s].steps[at_[s]];
    open_[s] = {{step.sends.begin(), step.sends.end()},
                {step.receives.begin(), step.receives.end()}};
  }

  // Delivers what can be delivered to and from stage s; true when its exchange is done.
  bool Match(int s) {
    for (int other = 0; other < schedule_.stages; ++other) {
      if (other == s) continue;
      while (Deliver(s, other) || Deliver(other, s)) {
      }
    }
    return open_[s].sends.empty() && open_[s].receives.empty();
  }

  bool Deliver(int from, int to) {
    if (at_[from] >= plans_[from].steps.size() || at_[to] >= plans_[to].steps.size()) return false;
    auto& sends = open_[from].sends;
    auto& receives = open_[to].receives;
    const auto send =
        std::find_if(sends.begin(), sends.end(), [&](const Message& m) { return m.peer == to; });
    const auto receive = std::find_if(receives.begin(), receives.end(),
                                      [&](const Message& m) { return m.peer == from; });
    if (send == sends.end() || receive == receives.end()) return false;
    const int step = send->gradient ? -1 : 1;
    const int source = schedule_.PositionAt(from, send->chunk);
    const int target = schedule_.PositionAt(to, receive->chunk);
    if (send->gradient != receive->gradient || send->microbatch != receive->microbatch ||
        source + step != target) {
      Fail("messages cross");
    }
    Fill(receive->gradient ? &gradients_[to] : &inputs_[to], receive->chunk, receive->slot,
         receive->microbatch);
    sends.erase(send);
    receives.erase(receive);
    return true;
  }

  void Fill(Slots* slots, int chunk, int slot, int microbatch) {
    if (!slots->insert({{chunk, slot}, microbatch}).second) Fail("a slot is in use");
  }

  void Expect(const Slots& slots, int chunk, int slot, int microbatch) {
    const auto found = slots.find({chunk, slot});
    if (found == slots.end() || found->second != microbatch) Fail("a slot holds something else");
  }

  void Run(int s, const Step& step) {
    const StagePlan& plan = plans_[s];
    const auto [kind, microbatch, chunk] = step.action;
    actions_[s].push_back(step.action);
    if (plan.IsEmpty(step)) return;
    const bool forward = kind == ActionKind::kForward;
    if (step.slot < 0 || step.slot >= plan.slots[chunk]) Fail("no such slot");
    if (forward) Fill(&items_[s], chunk, step.slot, microbatch);
    Expect(items_[s], chunk, step.slot, microbatch);
    if (plan.has_input(chunk)) Expect(inputs_[s], chunk, step.input_slot, microbatch);
    const bool weight = kind == ActionKind::kBackwardWeight;
    if (!forward && !weight && plan.has_output(chunk)) {
      Expect(gradients_[s], chunk, step.gradient_slot, microbatch);
    }
    if (kind == ActionKind::kBackwardInput) {
      if (step.deferred_slot < 0 || step.deferred_slot >= plan.deferred_slots[chunk])
        Fail("no such deferred slot");
      Fill(&deferred_[s], chunk, step.deferred_slot, microbatch);
    }
    if (weight) Expect(deferred_[s], chunk, step.deferred_slot, microbatch);
    if (step.result_slot >= 0) {
      Fill(forward ? &inputs_[s] : &gradients_[s], chunk + (forward ? 1 : -1), step.result_slot,
           microbatch);
    }
    if (!forward && !weight) gradients_[s].erase({chunk, step.gradient_slot});
    const bool ends_forward = ForwardOnly() || !plan.has_backward(chunk);
    if (kind == ActionKind::kBackward || weight || (forward && ends_forward)) {
      items_[s].erase({chunk, step.slot});
      inputs_[s].erase({chunk, step.input_slot});
      deferred_[s].erase({chunk, step.deferred_slot});
    }
  }

  bool ForwardOnly() const {
    for (const Action& action : schedule_.actions[0]) {
      if (action.kind != ActionKind::kForward) return false;
    }
    return true;
  }

  const Schedule& schedule_;
  std::vector<StagePlan> plans_;
  std::vector<size_t> at_;
  std::vector<Pending> open_;
  std::vector<Slots> items_, inputs_, gradients_, deferred_;
  std::map<int, std::vector<Action>> actions_;
  std::string error_;
};

TEST(StagePlanTest, PlansOfEverySmallScheduleRunWithoutBuffering) {
  for (int stages = 1; stages <= 5; ++stages) {
    for (int microbatches = 1; microbatches <= 9; ++microbatches) {
      SCOPED_TRACE(testing::Message() << stages << " stages, " << microbatches << " micro-batches");
      EXPECT_EQ(PlanPlayer(GPipeSchedule(stages, microbatches)).Play(), "");
      EXPECT_EQ(PlanPlayer(InterleavedSchedule({stages, microbatches})).Play(), "");
      EXPECT_EQ(PlanPlayer(ZeroBubbleSchedule(stages, microbatches)).Play(), "");
      EXPECT_EQ(PlanPlayer(ZeroBubbleVSchedule(stages, microbatches)).Play(), "");
      for (int chunks = 1; chunks <= 3; ++chunks) {
        for (PartOrder order : {PartOrder::kRoundRobin, PartOrder::kBackAndForth}) {
          EXPECT_EQ(PlanPlayer(ForwardSchedule({stages, microbatches, chunks, 0}, order)).Play(),
                    "");
        }
        for (int group = stages; group <= stages + 2; ++group) {
          const int last = microbatches % group;
          if (microbatches > group && last != 0 && last < stages) continue;
          EXPECT_EQ(PlanPlayer(InterleavedSchedule({stages, microbatches, chunks, group})).Play(),
                    "")
              << chunks << " chunks, groups of " << group;
        }
      }
    }
  }
}

// Returns the schedule of a model whose parts in front of `first` have nothing to train.
Schedule TrainedFrom(int first, Schedule schedule) {
  schedule.first_trained = first;
  return schedule;
}

TEST(StagePlanTest, PlansOfPartsWithoutBackwardRunWithoutBuffering) {
  for (int stages = 2; stages <= 4; ++stages) {
    for (int microbatches = 1; microbatches <= 9; ++microbatches) {
      std::vector<Schedule> schedules = {
          GPipeSchedule(stages, microbatches), InterleavedSchedule({stages, microbatches}),
          ZeroBubbleSchedule(stages, microbatches), ZeroBubbleVSchedule(stages, microbatches)};
      if (microbatches % stages == 0)
        schedules.push_back(InterleavedSchedule({stages, microbatches, 2, 0}));
      for (size_t i = 0; i < schedules.size(); ++i) {
        for (int first = 1; first < schedules[i].positions(); ++first) {
          EXPECT_EQ(PlanPlayer(TrainedFrom(first, schedules[i])).Play(), "")
              << stages << " stages, " << microbatches << " micro-batches, schedule " << i
              << ", trained from " << first;
        }
      }
    }
  }
}

TEST(StagePlanTest, NoGradientsAreSentToPartsWithoutBackward) {
  const Schedule schedule = TrainedFrom(2, InterleavedSchedule({4, 16}));
  for (int stage = 0; stage < 4; ++stage) {
    const StagePlan plan = PlanStage(schedule, stage);
    int gradients = 0;
    for (const Step& step : plan.steps) {
      for (const Message& message : step.sends) gradients += message.gradient;
    }
    EXPECT_EQ(gradients, stage == 3 ? 16 : 0);
    EXPECT_EQ(plan.has_backward(0), stage >= 2);
    EXPECT_EQ(plan.has_input_gradient(0), stage == 3);
    EXPECT_EQ(plan.slots, std::vector<int>({stage < 2 ? 1 : 4 - stage}));
    EXPECT_EQ(plan.gradient_slots[0] > 0, stage == 2);
    // The stages in front do not run ahead of the others.
    EXPECT_LE(plan.input_slots[0], stage == 0 ? 0 : 4 - stage + 1);
  }
}

TEST(StagePlanTest, PartsWithoutBackwardPutNothingOff) {
  const Schedule schedule = TrainedFrom(1, ZeroBubbleSchedule(4, 16));
  EXPECT_EQ(PlanStage(schedule, 0).deferred_slots, std::vector<int>({0}));
  EXPECT_GT(PlanStage(schedule, 1).deferred_slots[0], 0);
}

// A schedule that can run, otherwise without any order: each stage picks among what is ready.
Schedule RandomSchedule(std::mt19937* random) {
  const auto draw = [&](int count) { return static_cast<int>((*random)() % count); };
  Schedule schedule{1 + draw(4), 1 + draw(3), 1 + draw(6)};
  if (draw(2) == 0) schedule.order = PartOrder::kBackAndForth;
  schedule.actions.resize(schedule.stages);
  const int positions = schedule.positions();
  const bool split = draw(2) == 0;
  std::set<std::tuple<ActionKind, int, int>> done;  // kind, position, micro-batch
  const auto is_done = [&](ActionKind kind, int position, int microbatch) {
    return done.count({kind, position, microbatch}) > 0;
  };
  const ActionKind backward = split ? ActionKind::kBackwardInput : ActionKind::kBackward;
  while (true) {
    std::vector<std::tuple<ActionKind, int, int>> ready;
    for (int p = 0; p < positions; ++p) {
      for (int m = 0; m < schedule.microbatches; ++m) {
        const bool forwarded = is_done(ActionKind::kForward, p, m);
        if (!forwarded && (p == 0 || is_done(ActionKind::kForward, p - 1, m))) {
          ready.push_back({ActionKind::kForward, p, m});
        }
        const bool backwarded = is_done(backward, p, m);
        if (forwarded && !backwarded && (p == positions - 1 || is_done(backward, p + 1, m))) {
          ready.push_back({backward, p, m});
        }
        if (split && backwarded && !is_done(ActionKind::kBackwardWeight, p, m)) {
          ready.push_back({ActionKind::kBackwardWeight, p, m});
        }
      }
    }
    if (ready.empty()) return schedule;
    const auto next = ready[draw(static_cast<int>(ready.size()))];
    done.insert(next);
    const auto [kind, position, microbatch] = next;
    const Place place = PlaceOf(schedule.order, schedule.stages, position);
    schedule.actions[place.stage].push_back({kind, microbatch, place.chunk});
  }
}

TEST(StagePlanTest, PlansOfRandomSchedulesRunWithoutBuffering) {
  std::mt19937 random(1);
  for (int i = 0; i < 1000; ++i) {
    const Schedule schedule = RandomSchedule(&random);
    EXPECT_EQ(PlanPlayer(schedule).Play(), "") << "schedule " << i;
    const int first = static_cast<int>(random() % schedule.positions());
    EXPECT_EQ(PlanPlayer(TrainedFrom(first, schedule)).Play(), "")
        << "schedule " << i << ", trained from " << first;
  }
}

TEST(StagePlanTest, OneStageHasNoMessagesAndOneSlot) {
  const StagePlan plan = PlanStage(InterleavedSchedule({1, 5}), 0);
  EXPECT_EQ(plan.steps.size(), 10u);
  for (const Step& step : plan.steps) EXPECT_FALSE(step.is_exchange());
  EXPECT_EQ(plan.slots, std::vector<int>({1}));
  EXPECT_EQ(plan.gradient_slots, std::vector<int>({0}));
}

TEST(StagePlanTest, OneForwardOneBackwardNeedsASlotPerStageBehind) {
  for (int stage = 0; stage < 4; ++stage) {
    const StagePlan plan = PlanStage(InterleavedSchedule({4, 16}), stage);
    EXPECT_EQ(plan.slots, std::vector<int>({4 - stage}));
    // An input arrives during the backward before its forward.
    EXPECT_EQ(plan.input_slots, std::vector<int>({stage == 0 ? 0 : 4 - stage + 1}));
  }
}

// Stage s of ZB-H1 puts off s micro-batches, and one more while it takes the next.
TEST(StagePlanTest, OnlySplitBackwardsHaveDeferredSlots) {
  for (int stage = 0; stage < 4; ++stage) {
    EXPECT_EQ(PlanStage(InterleavedSchedule({4, 16}), stage).deferred_slots, std::vector<int>({0}));
    const StagePlan plan = PlanStage(ZeroBubbleSchedule(4, 16), stage);
    EXPECT_EQ(plan.deferred_slots, std::vector<int>({stage + 1}));
    EXPECT_EQ(plan.slots, std::vector<int>({4}));
    EXPECT_LE(plan.gradient_slots[0], 2);
  }
}

// The last stage turns around in place, the first has both ends of the model.
TEST(StagePlanTest, ZeroBubbleVSendsNothingAtTheTurn) {
  const Schedule schedule = ZeroBubbleVSchedule(3, 6);
  for (int stage = 0; stage < 3; ++stage) {
    const StagePlan plan = PlanStage(schedule, stage);
    EXPECT_EQ(plan.has_input(0), stage > 0);
    EXPECT_EQ(plan.has_output(1), stage > 0);
    std::set<int> peers;
    for (const Step& step : plan.steps) {
      for (const Message& message : step.sends) peers.insert(message.peer);
    }
    EXPECT_EQ(peers, stage == 1 ? std::set<int>({0, 2}) : std::set<int>({1}));
  }
}

TEST(StagePlanTest, SendsAndReceivesShareAnExchange) {
  // Stage 0 of 2 sends an input and receives a gradient at once in the middle of 1F1B.
  const StagePlan plan = PlanStage(InterleavedSchedule({2, 4}), 0);
  int both = 0;
  for (const Step& step : plan.steps) {
    if (!step.sends.empty() && !step.receives.empty()) ++both;
  }
  EXPECT_GE(both, 1);
}

// The actions between messages, whatever the order of messages within an exchange.
std::vector<std::string> Outline(const StagePlan& plan) {
  std::vector<std::string> outline;
  for (const Step& step : plan.steps) {
    std::multiset<std::string> lines;
    for (const Message& m : step.sends)
      lines.insert((testing::Message() << "send " << m.peer << " " << m.gradient << " "
                                       << m.microbatch << " " << m.chunk)
                       .GetString());
    for (const Message& m : step.receives)
      lines.insert((testing::Message() << "receive " << m.peer << " " << m.gradient << " "
                                       << m.microbatch << " " << m.chunk)
                       .GetString());
    if (!step.is_exchange()) lines.insert((testing::Message() << step.action).GetString());
    outline.insert(outline.end(), lines.begin(), lines.end());
    outline.push_back("");
  }
  return outline;
}

// Tenths do not sum up to what they should; a message that is there in time must not be taken an
// action later for it.
TEST(StagePlanTest, RoundingOfTimesDelaysNoMessage) {
  for (int microbatches = 4; microbatches <= 12; ++microbatches) {
    for (const Schedule& schedule :
         {InterleavedSchedule({4, microbatches}), ZeroBubbleSchedule(4, microbatches),
          InterleavedSchedule({4, microbatches, 2, 4}), ZeroBubbleVSchedule(4, microbatches)}) {
      for (int stage = 0; stage < schedule.stages; ++stage) {
        EXPECT_EQ(Outline(PlanStage(schedule, stage, ActionCosts{0.1, 0.1, 0.1})),
                  Outline(PlanStage(schedule, stage, ActionCosts{1, 1, 1})))
            << microbatches << " micro-batches, stage " << stage;
      }
    }
  }
}

}  // namespace
}  // namespace megatron
