#include "megatron/plan/simulate_step.h"

#include <algorithm>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/pipeline/check_schedule.h"
#include "megatron/pipeline/schedule_kind.h"
#include "megatron/pipeline/stage_plan.h"
#include "megatron/plan/step_prediction.h"

namespace megatron {
namespace {

using ::testing::DoubleEq;

ScheduleOptions Options(ScheduleKind kind, int stages, int microbatches, int chunks = 1) {
  ScheduleOptions options;
  options.kind = kind;
  options.stages = stages;
  options.microbatches = microbatches;
  options.chunks = chunks;
  return options;
}

SimulatedStep Simulate(const ScheduleOptions& options, const PartCosts& seconds,
                       const MessageCosts& messages) {
  return SimulateStep(PlanStages(MakeSchedule(options), seconds), seconds, messages);
}

TEST(SimulateStepTest, EqualStagesTakeWhatTheClosedFormSays) {
  const ActionCosts costs = {0.011, 0.013, 0.012};
  const double work = costs.forward + costs.backward_input + costs.backward_weight;
  for (const int stages : {1, 2, 4, 16}) {
    for (const int chunks : {1, 2, 3}) {
      if (stages == 1 && chunks > 1) continue;
      const int microbatches = 4 * stages;
      const SimulatedStep step =
          Simulate(Options(ScheduleKind::kOneForwardOneBackward, stages, microbatches, chunks),
                   costs, {0, /*beside_passes=*/true});
      const double expected = work * (chunks * microbatches + stages - 1);
      EXPECT_NEAR(step.seconds, expected, 1e-9) << stages << " stages of " << chunks;
      EXPECT_NEAR(step.bubble, (stages - 1) * work, 1e-9);
      EXPECT_EQ(step.message_seconds, 0);
    }
  }
}

// Also with weights' gradients that take longer than what they fill, and with fewer micro-batches
// than stages.
TEST(SimulateStepTest, ZeroBubbleH1OfEqualStagesTakesWhatTheClosedFormSays) {
  for (const ActionCosts& costs : {ActionCosts{1, 1, 1}, ActionCosts{1, 1.5, 0.5},
                                   ActionCosts{1, 0.5, 1}, ActionCosts{2, 3, 0.25}}) {
    const double work = costs.forward + costs.backward_input + costs.backward_weight;
    for (const int stages : {1, 2, 4, 16}) {
      for (const int microbatches : {std::max(1, stages / 2), stages, 4 * stages}) {
        const SimulatedStep step =
            Simulate(Options(ScheduleKind::kZeroBubbleH1, stages, microbatches), costs,
                     {0, /*beside_passes=*/true});
        const double idle = ZeroBubbleH1Idle(costs.forward, costs.backward_input,
                                             costs.backward_weight, stages, microbatches);
        EXPECT_NEAR(step.seconds, microbatches * work + idle, 1e-9)
            << stages << " stages, " << microbatches << " micro-batches";
      }
    }
  }
}

// A stage that pauses for a message waits until the other has ended its pass: of one chunk that is
// no time.
TEST(SimulateStepTest, StagesThatPauseForMessagesWaitForEachOtherIfTheyHaveSeveralChunks) {
  const ActionCosts costs = {1, 1.2, 1.1};
  for (const int chunks : {1, 2}) {
    const ScheduleOptions options = Options(ScheduleKind::kOneForwardOneBackward, 4, 16, chunks);
    const SimulatedStep beside = Simulate(options, costs, {0, /*beside_passes=*/true});
    const SimulatedStep between = Simulate(options, costs, {0, /*beside_passes=*/false});
    if (chunks == 1) {
      EXPECT_NEAR(between.seconds, beside.seconds, 1e-9);
    } else {
      EXPECT_GT(between.seconds, beside.seconds);
    }
  }
}

TEST(SimulateStepTest, WithoutMessagesItAgreesWithTheCheckOfTheSchedule) {
  for (const ScheduleOptions& options :
       {Options(ScheduleKind::kGPipe, 4, 8), Options(ScheduleKind::kOneForwardOneBackward, 4, 8, 2),
        Options(ScheduleKind::kZeroBubbleH1, 4, 8), Options(ScheduleKind::kZeroBubbleV, 4, 8, 2)}) {
    const ActionCosts costs = {1, 1.25, 0.75};
    const ScheduleReport report = *CheckSchedule(MakeSchedule(options), costs);
    const SimulatedStep step = Simulate(options, costs, {0, /*beside_passes=*/true});
    EXPECT_NEAR(step.seconds, report.time, 1e-9);
    for (int stage = 0; stage < options.stages; ++stage) {
      ASSERT_EQ(step.stages[stage].passes.size(), report.stages[stage].size());
      for (size_t i = 0; i < report.stages[stage].size(); ++i) {
        EXPECT_EQ(step.stages[stage].passes[i].action, report.stages[stage][i].action);
        EXPECT_NEAR(step.stages[stage].passes[i].start, report.stages[stage][i].start, 1e-9);
      }
    }
  }
}

// Two stages of 1F1B, of which the second has a head: its forward takes 2, its backward 4. Messages
// take 0.5, and stages pause for them.
//   first:  F0 0-1, message to 1.5, F1 1.5-2.5, waits, message 3.5-4, ..., B1 15-17
//   second: F0 1.5-3.5, message to 4, B0 4-8, message to 8.5, F1 8.5-10.5, B1 10.5-14.5, message
TEST(SimulateStepTest, UnequalStagesWithMessagesAreAsWorkedOutByHand) {
  const PartCosts seconds({ActionCosts{1, 1, 1}, ActionCosts{2, 2, 2}});
  const SimulatedStep step =
      Simulate(Options(ScheduleKind::kOneForwardOneBackward, 2, 2), seconds, {0.5});
  const Timeline& first = step.stages[0].passes;
  const Timeline& second = step.stages[1].passes;
  ASSERT_EQ(first.size(), 4);
  ASSERT_EQ(second.size(), 4);
  EXPECT_THAT(first[1].start, DoubleEq(1.5));
  EXPECT_THAT(second[0].start, DoubleEq(1.5));
  EXPECT_EQ(step.busiest, 1);
  EXPECT_THAT(step.stages[1].work, DoubleEq(12));
  // Without messages: F0 1-3, B0 3-7, F1 7-9, B1 9-13, and the first stage's B1 13-15.
  EXPECT_THAT(step.seconds - step.message_seconds, DoubleEq(15));
  EXPECT_THAT(step.bubble, DoubleEq(3));
  EXPECT_THAT(step.seconds, DoubleEq(17));
  EXPECT_THAT(step.message_seconds, DoubleEq(2));
}

TEST(SimulateStepTest, MessagesBesidePassesCostLess) {
  const ScheduleOptions options = Options(ScheduleKind::kOneForwardOneBackward, 4, 16, 2);
  const ActionCosts costs = {1, 1, 1};
  const SimulatedStep beside = Simulate(options, costs, {0.1, /*beside_passes=*/true});
  const SimulatedStep between = Simulate(options, costs, {0.1, /*beside_passes=*/false});
  EXPECT_GT(beside.message_seconds, 0);
  EXPECT_LT(beside.message_seconds, between.message_seconds);
}

}  // namespace
}  // namespace megatron
