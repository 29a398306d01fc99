#include "megatron/pipeline/schedule.h"

#include <sstream>

#include "gtest/gtest.h"

namespace megatron {
namespace {

std::string Text(const std::vector<Action>& actions) {
  std::ostringstream out;
  for (const Action& action : actions) out << (out.tellp() > 0 ? " " : "") << action;
  return out.str();
}

TEST(ScheduleTest, GPipeForwardsEverythingFirst) {
  EXPECT_EQ(Text(PlanGPipe(1, 2, 3)), "F0 F1 F2 B0 B1 B2");
}

TEST(ScheduleTest, OneForwardOneBackwardFillsThePipelineFirst) {
  EXPECT_EQ(Text(PlanInterleaved(0, {3, 4})), "F0 F1 F2 B0 F3 B1 B2 B3");
  EXPECT_EQ(Text(PlanInterleaved(1, {3, 4})), "F0 F1 B0 F2 B1 F3 B2 B3");
  EXPECT_EQ(Text(PlanInterleaved(2, {3, 4})), "F0 B0 F1 B1 F2 B2 F3 B3");
}

TEST(ScheduleTest, FewMicrobatchesNeverFillThePipeline) {
  EXPECT_EQ(Text(PlanInterleaved(0, {4, 2})), "F0 F1 B0 B1");
  EXPECT_EQ(Text(PlanInterleaved(0, {1, 2})), "F0 B0 F1 B1");
}

// Two stages of two chunks: warm-up is 2 (stages behind) + one group of 2 micro-batches, which is
// 4 forwards on stage 0 and 2 on stage 1.
TEST(ScheduleTest, InterleavingPassesGroupsThroughOneChunkAfterTheOther) {
  EXPECT_EQ(Text(PlanInterleaved(0, {2, 4, 2, 0})),
            "F0 F1 F0.1 F1.1 F2 B0.1 F3 B1.1 F2.1 B0 F3.1 B1 B2.1 B3.1 B2 B3");
  EXPECT_EQ(Text(PlanInterleaved(1, {2, 4, 2, 0})),
            "F0 F1 F0.1 B0.1 F1.1 B1.1 F2 B0 F3 B1 F2.1 B2.1 F3.1 B3.1 B2 B3");
}

TEST(ScheduleTest, PartsGoRoundOrBackAndForth) {
  const auto stages_of = [](PartOrder order) {
    std::vector<int> stages;
    for (int position = 0; position < 9; ++position) {
      const Place place = PlaceOf(order, 3, position);
      EXPECT_EQ(place.chunk, position / 3);
      EXPECT_EQ(PositionOf(order, 3, place), position);
      stages.push_back(place.stage);
    }
    return stages;
  };
  EXPECT_EQ(stages_of(PartOrder::kRoundRobin), std::vector<int>({0, 1, 2, 0, 1, 2, 0, 1, 2}));
  EXPECT_EQ(stages_of(PartOrder::kBackAndForth), std::vector<int>({0, 1, 2, 2, 1, 0, 0, 1, 2}));
}

TEST(ScheduleTest, ForwardsAloneHaveNoBackward) {
  EXPECT_EQ(Text(PlanForwards(0, {2, 3, 1, 0})), "F0 F1 F2");
  EXPECT_EQ(Text(PlanForwards(1, {2, 3, 2, 0})), "F0 F1 F0.1 F1.1 F2 F2.1");
}

}  // namespace
}  // namespace megatron
