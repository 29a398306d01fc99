#include "megatron/data/length_schedule.h"

#include <utility>

#include "gtest/gtest.h"

namespace megatron {
namespace {

LengthSchedule Root(double degree) { return {64, 1024, 10000, 8, degree, {}, {}}; }

void ExpectLengths(const LengthSchedule& schedule,
                   const std::vector<std::pair<int64_t, int64_t>>& expected) {
  for (const auto& [step, length] : expected) EXPECT_EQ(schedule.At(step), length) << step;
}

// The values are those of DeepSpeed's scheduler.
TEST(LengthScheduleTest, LinearLengthsAreDeepSpeeds) {
  ExpectLengths(Root(1), {{0, 64},
                          {100, 72},
                          {1000, 160},
                          {2500, 304},
                          {5000, 544},
                          {9000, 928},
                          {9999, 1016},
                          {10000, 1024},
                          {20000, 1024}});
}

TEST(LengthScheduleTest, LengthsByARootAreDeepSpeeds) {
  ExpectLengths(
      Root(2),
      {{1, 72}, {100, 160}, {1000, 360}, {2500, 544}, {5000, 736}, {9000, 968}, {10000, 1024}});
}

TEST(LengthScheduleTest, ListedLengthsLastUpToTheirStepsAndTheLastForEver) {
  LengthSchedule schedule;
  schedule.lengths = {8, 16, 32};
  schedule.last_steps = {5, 10};
  ExpectLengths(schedule, {{1, 8}, {5, 8}, {6, 16}, {10, 16}, {11, 32}, {1000000, 32}});
  schedule.lengths = {16};
  schedule.last_steps = {};
  ExpectLengths(schedule, {{1, 16}, {9, 16}});
}

TEST(LengthScheduleTest, NoStepHasAShorterSampleThanTheOneBefore) {
  for (double degree : {1.0, 2.0, 3.5}) {
    const LengthSchedule schedule = Root(degree);
    int64_t last = 0;
    for (int64_t step = 1; step <= 10001; ++step) {
      const int64_t length = schedule.At(step);
      ASSERT_EQ(length % 8, 0) << step;
      ASSERT_GE(length, last) << step;
      last = length;
    }
    EXPECT_EQ(last, 1024);
  }
}

TEST(LengthScheduleTest, SumsTheLengthsOfTheFirstSteps) {
  LengthSchedule listed;
  listed.lengths = {8, 16, 32};
  listed.last_steps = {5, 10};
  for (const LengthSchedule& schedule : {Root(2), listed}) {
    int64_t sum = 0;
    for (int64_t step = 1; step <= 10100; ++step) {
      sum += schedule.At(step);
      if (step >= 20 && step <= 9990) continue;
      EXPECT_EQ(schedule.SumOver(step), sum) << step;
    }
  }
}

TEST(LengthScheduleTest, AnEmptyScheduleIsNone) {
  EXPECT_FALSE(LengthSchedule().enabled());
  EXPECT_TRUE(Root(1).enabled());
}

}  // namespace
}  // namespace megatron
