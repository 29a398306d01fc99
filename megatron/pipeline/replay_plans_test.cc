#include "megatron/pipeline/replay_plans.h"

#include <algorithm>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/pipeline/check_schedule.h"
#include "megatron/pipeline/schedule_kind.h"

namespace megatron {
namespace {

using ::testing::DoubleEq;
using ::testing::ElementsAre;

std::vector<StagePlan> PlansOf(const Schedule& schedule) {
  std::vector<StagePlan> plans;
  for (int stage = 0; stage < schedule.stages; ++stage) plans.push_back(PlanStage(schedule, stage));
  return plans;
}

// The times of stages whose passes take 1 (a whole backward 2), and whose exchanges take `message`.
std::vector<StageTimes> UnitTimes(const std::vector<StagePlan>& plans, double message) {
  std::vector<StageTimes> times(plans.size());
  for (size_t stage = 0; stage < plans.size(); ++stage) {
    for (const Step& step : plans[stage].steps) {
      const bool whole = step.action.kind == ActionKind::kBackward;
      times[stage].steps.push_back(step.is_exchange() ? message : whole ? 2 : 1);
    }
  }
  return times;
}

TEST(ReplayPlansTest, WithMessagesThatTakeNoTimeItTakesWhatCheckScheduleSays) {
  struct Case {
    ScheduleKind kind;
    int chunks;
  };
  for (const Case& c :
       {Case{ScheduleKind::kGPipe, 1}, Case{ScheduleKind::kOneForwardOneBackward, 1},
        Case{ScheduleKind::kOneForwardOneBackward, 2}, Case{ScheduleKind::kZeroBubbleH1, 1},
        Case{ScheduleKind::kZeroBubbleV, 2}}) {
    ScheduleOptions options;
    options.kind = c.kind;
    options.chunks = c.chunks;
    options.stages = 4;
    options.microbatches = 8;
    const Schedule schedule = MakeSchedule(options);
    const std::vector<StagePlan> plans = PlansOf(schedule);
    const std::vector<double> ends = ReplayPlans(FindPartners(plans), nullptr, UnitTimes(plans, 0));
    EXPECT_DOUBLE_EQ(*std::max_element(ends.begin(), ends.end()), CheckSchedule(schedule)->time)
        << static_cast<int>(c.kind) << " with " << c.chunks << " chunks";
  }
}

TEST(ReplayPlansTest, AMessageBeginsWhenBothStagesHaveCome) {
  const std::vector<StagePlan> plans = PlansOf(GPipeSchedule(/*stages=*/2, /*microbatches=*/1));
  const ExchangePartners partners = FindPartners(plans);
  // F from 0 to 1, the message to 4, F to 5, B to 7, the message to 10, B to 12.
  EXPECT_THAT(ReplayPlans(partners, nullptr, UnitTimes(plans, 3)),
              ElementsAre(DoubleEq(12), DoubleEq(10)));
  std::vector<StageTimes> late = UnitTimes(plans, 3);
  late[1].start = 21;
  EXPECT_THAT(ReplayPlans(partners, nullptr, late), ElementsAre(DoubleEq(32), DoubleEq(30)));
}

TEST(ReplayPlansTest, MessagesBesideActionsThatTakeNoTimeChangeNothing) {
  ScheduleOptions options;
  options.kind = ScheduleKind::kZeroBubbleV;
  options.chunks = 2;
  options.stages = 4;
  options.microbatches = 8;
  const Schedule schedule = MakeSchedule(options);
  const std::vector<StagePlan> plans = PlansOf(schedule);
  const AwaitedExchanges awaited = FindAwaited(plans);
  const std::vector<double> ends = ReplayPlans(FindPartners(plans), &awaited, UnitTimes(plans, 0));
  EXPECT_DOUBLE_EQ(*std::max_element(ends.begin(), ends.end()), CheckSchedule(schedule)->time);
}

TEST(ReplayPlansTest, MessagesBesideActionsDelayOnlyThoseThatNeedThem) {
  const std::vector<StagePlan> plans = PlansOf(GPipeSchedule(/*stages=*/2, /*microbatches=*/2));
  const ExchangePartners partners = FindPartners(plans);
  const AwaitedExchanges awaited = FindAwaited(plans);
  std::vector<StageTimes> times = UnitTimes(plans, 0.5);
  for (size_t i = 0; i < plans[0].steps.size(); ++i) {
    const Step& step = plans[0].steps[i];
    if (!step.is_exchange() && step.action.kind == ActionKind::kForward) times[0].steps[i] = 5;
  }
  // The first stage's F to 5 and to 10, the second message to 10.5, F of the second stage to 11.5,
  // its B to 13.5 and to 15.5; B of the first stage from 14 to 16, the message to 16.5, B to 18.5.
  EXPECT_THAT(ReplayPlans(partners, &awaited, times), ElementsAre(DoubleEq(18.5), DoubleEq(16.5)));
  // F to 5, the message to 5.5, F to 10.5, the message to 11, F to 12, B to 14, the message to
  // 14.5, B of both to 16.5, the message to 17, B to 19.
  EXPECT_THAT(ReplayPlans(partners, nullptr, times), ElementsAre(DoubleEq(19), DoubleEq(17)));
}

}  // namespace
}  // namespace megatron
