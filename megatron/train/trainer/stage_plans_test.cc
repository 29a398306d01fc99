#include "megatron/train/trainer/stage_plans.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::testing::ElementsAre;

constexpr ScheduleKind kSchedule = ScheduleKind::kOneForwardOneBackward;

// The second of three stages.
StagePlacement Middle() {
  StagePlacement placement;
  placement.stage = 1;
  placement.stages = 3;
  return placement;
}

// Returns the number of actions of each kind in a plan: forward, backward.
std::vector<int> ActionsOf(const StagePlan& plan) {
  std::vector<int> actions(2);
  for (const Step& step : plan.steps) {
    if (!step.is_exchange()) ++actions[step.action.kind == ActionKind::kForward ? 0 : 1];
  }
  return actions;
}

TEST(StagePlansTest, APlanIsThatOfTheStageForTheMicroBatchesAskedFor) {
  StagePlans plans(kSchedule, /*group=*/0, Middle(), PartCosts());
  const StagePlan& four = plans.Of(4);
  EXPECT_EQ(four.stage, 1);
  EXPECT_EQ(four.microbatches, 4);
  EXPECT_THAT(ActionsOf(four), ElementsAre(4, 4));
  EXPECT_THAT(four.slots, ElementsAre(2));  // one less than on the first stage
  EXPECT_THAT(ActionsOf(plans.Of(6)), ElementsAre(6, 6));
  EXPECT_THAT(ActionsOf(plans.Make(5)), ElementsAre(5, 5));
  EXPECT_THAT(ActionsOf(plans.Forward(5)), ElementsAre(5, 0));
}

// A step of one micro-batch is one that a fresh plan also has.
TEST(StagePlansTest, TheFirstPlanIsMadeForOneMicroBatchToo) {
  StagePlans plans(kSchedule, /*group=*/0, Middle(), PartCosts());
  EXPECT_THAT(ActionsOf(plans.Of(1)), ElementsAre(1, 1));
}

TEST(StagePlansTest, PlansOfAllStagesAreThoseOfTheLastStep) {
  StagePlans plans(kSchedule, /*group=*/0, Middle(), PartCosts());
  plans.Of(5);
  const std::vector<StagePlan> all = plans.OfAllStages();
  ASSERT_EQ(all.size(), 3);
  for (int stage = 0; stage < 3; ++stage) {
    EXPECT_EQ(all[stage].stage, stage);
    EXPECT_THAT(ActionsOf(all[stage]), ElementsAre(5, 5));
  }
}

// A step of fewer micro-batches than a group passes all of them through the first chunk before the
// second, and so has more of them in the second than a step of a whole group.
TEST(StagePlansTest, SlotsForAllAreThoseOfShorterStepsToo) {
  StagePlacement placement = Middle();
  placement.stages = placement.chunks = 2;
  const StagePlans plans(kSchedule, /*group=*/4, placement, PartCosts());
  EXPECT_THAT(plans.Make(2).slots, ElementsAre(2, 2));
  EXPECT_THAT(plans.Make(4).slots, ElementsAre(4, 1));
  EXPECT_THAT(plans.Make(2).input_slots, ElementsAre(2, 2));
  const StagePlan plan = plans.MakeWithSlotsForAll({2, 4});
  EXPECT_THAT(ActionsOf(plan), ElementsAre(8, 8));
  EXPECT_THAT(plan.slots, ElementsAre(4, 2));
  EXPECT_THAT(plan.input_slots, ElementsAre(4, 2));
  EXPECT_THAT(plan.gradient_slots, ElementsAre(3, 0));
}

TEST(StagePlansTest, PartsWithoutParametersToTrainHaveNoBackward) {
  StagePlacement placement = Middle();
  placement.first_trained = 2;
  const StagePlan plan =
      StagePlans(kSchedule, /*group=*/0, placement, PartCosts()).Make(/*micro_batches=*/4);
  EXPECT_FALSE(plan.has_backward(0));
  EXPECT_EQ(plan.first_trained, 2);
}

}  // namespace
}  // namespace megatron
