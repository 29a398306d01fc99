#include "megatron/optim/rules/zero_one_schedule.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

namespace megatron {
namespace {

// Returns the steps up to `last`, counted from 1, in which ranks do this.
std::vector<int64_t> StepsOf(const ZeroOneSchedule& schedule, RankStep what, int64_t last) {
  std::vector<int64_t> steps;
  for (int64_t step = 1; step <= last; ++step) {
    if (schedule.StepAfter(step - 1) == what) steps.push_back(step);
  }
  return steps;
}

TEST(ZeroOneScheduleTest, SumsAreThoseThatArePublished) {
  const ZeroOneSchedule schedule;
  EXPECT_EQ(StepsOf(schedule, RankStep::kSum, 1000).size(), 96u);
  EXPECT_EQ(StepsOf(schedule, RankStep::kSum, 12500).size(), 153u);
  std::vector<int64_t> want;
  for (int64_t step = 1; step <= 16; ++step) want.push_back(step);
  for (int64_t step = 18; step <= 48; step += 2) want.push_back(step);
  for (int64_t step = 52; step <= 60; step += 4) want.push_back(step);
  EXPECT_EQ(StepsOf(schedule, RankStep::kSum, 60), want);
  EXPECT_EQ(StepsOf(schedule, RankStep::kMean, 1000).size(), 1000u - 96);
}

// The rules as they are published, with counters.
TEST(ZeroOneScheduleTest, StepsAreThoseOfCounters) {
  for (const int64_t scaler : {1, 3, 5, 16}) {
    for (const int64_t clipper : {1, 4, 6}) {
      const ZeroOneSchedule schedule = {/*var_freeze_step=*/50, scaler, /*local_step_scaler=*/7,
                                        clipper};
      int64_t interval = 1, sums = 0, local_interval = 1, local_steps = 0;
      for (int64_t step = 1; step <= 150; ++step) {
        SCOPED_TRACE(step);
        const RankStep got = schedule.StepAfter(step - 1);
        if (step <= schedule.var_freeze_step) {
          const bool is_sum = step % interval == 0;
          ASSERT_EQ(got, is_sum ? RankStep::kSum : RankStep::kMean);
          if (is_sum && ++sums == scaler) {
            sums = 0;
            interval *= 2;
          }
          continue;
        }
        ASSERT_EQ(got, step % local_interval == 0 ? RankStep::kJoin : RankStep::kLocal);
        if (++local_steps == schedule.local_step_scaler) {
          local_steps = 0;
          local_interval = std::min(clipper, 2 * local_interval);
        }
      }
    }
  }
}

}  // namespace
}  // namespace megatron
