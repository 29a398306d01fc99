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
    const std::vector<double> ends = ReplayPlans(FindPartners(plans), UnitTimes(plans, 0));
    EXPECT_DOUBLE_EQ(*std::max_element(ends.begin(), ends.end()), CheckSchedule(schedule)->time)
        << static_cast<int>(c.kind) << " with " << c.chunks << " chunks";
  }
}

TEST(ReplayPlansTest, AMessageBeginsWhenBothStagesHaveCome) {
  const std::vector<StagePlan> plans = PlansOf(GPipeSchedule(/*stages=*/2, /*microbatches=*/1));
  const ExchangePartners partners = FindPartners(plans);
  // F from 0 to 1, the message to 4, F to 5, B to 7, the message to 10, B to 12.
  EXPECT_THAT(ReplayPlans(partners, UnitTimes(plans, 3)), ElementsAre(DoubleEq(12), DoubleEq(10)));
  std::vector<StageTimes> late = UnitTimes(plans, 3);
  late[1].start = 21;
  EXPECT_THAT(ReplayPlans(partners, late), ElementsAre(DoubleEq(32), DoubleEq(30)));
}

}  // namespace
}  // namespace megatron
