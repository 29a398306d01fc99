#include "megatron/train/metrics/timers.h"

#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using Milliseconds = std::vector<std::vector<double>>;

int Named(const std::string& name) {
  for (int timer = 0; timer < kNumTimers; ++timer) {
    if (Timers()[timer].name == name) return timer;
  }
  ADD_FAILURE() << name;
  return 0;
}

// Three ranks, the second of which has no forward-recv.
Milliseconds ThreeRanks() {
  Milliseconds ranks(3, std::vector<double>(kNumTimers));
  for (int rank = 0; rank < 3; ++rank) {
    ranks[rank][Named("forward-backward")] = 48.914 + rank;
    ranks[rank][Named("forward-recv")] = rank == 1 ? 0 : 2.5 - rank;
    ranks[rank][Named("optimizer")] = 1.5;
  }
  return ranks;
}

TEST(TimersTest, TheTextIsMegatrons) {
  EXPECT_EQ(FormatTimers(ThreeRanks(), 2, TimerOption::kMinMax),
            "(min, max) time across ranks (ms):\n"
            "    forward-backward ...............................: (48.91, 50.91)\n"
            "    forward-recv ...................................: (0.50, 2.50)\n"
            "    optimizer ......................................: (1.50, 1.50)");
  EXPECT_EQ(FormatTimers(ThreeRanks(), 1, TimerOption::kMax),
            "max time across ranks (ms):\n"
            "    forward-backward ...............................: 50.91\n"
            "    optimizer ......................................: 1.50");
  EXPECT_EQ(FormatTimers(ThreeRanks(), 2, TimerOption::kAll),
            "times across ranks (ms):\n"
            "  forward-backward:\n"
            "     rank  0: 48.91\n"
            "     rank  1: 49.91\n"
            "     rank  2: 50.91\n"
            "  forward-recv:\n"
            "     rank  0: 2.50\n"
            "     rank  2: 0.50\n"
            "  optimizer:\n"
            "     rank  0: 1.50\n"
            "     rank  1: 1.50\n"
            "     rank  2: 1.50");
}

TEST(TimersTest, NothingIsPrintedAtLevelZeroOrWithoutTimes) {
  EXPECT_EQ(FormatTimers(ThreeRanks(), 0, TimerOption::kMinMax), "");
  EXPECT_EQ(FormatTimers(Milliseconds(2, std::vector<double>(kNumTimers)), 2, TimerOption::kAll),
            "");
}

TEST(TimersTest, SpansHaveTheTimersOfTheirWork) {
  EXPECT_EQ(TimerOfSpan("forward"), Named("forward-compute"));
  for (const char* span : {"backward", "backward input", "backward weight"})
    EXPECT_EQ(TimerOfSpan(span), Named("backward-compute"));
  EXPECT_EQ(TimerOfSpan("forward-send-backward-recv"), Named("forward-send-backward-recv"));
  EXPECT_EQ(TimerOfSpan("optimizer"), Named("optimizer"));
  EXPECT_EQ(TimerOfSpan("update"), Named("optimizer-inner-step"));
  EXPECT_EQ(TimerOfSpan("step"), -1);
  EXPECT_EQ(TimerOfSpan("save-checkpoint"), -1);
}

TEST(TimersTest, TagsAreTheNamesOfMegatronsFiles) {
  for (const Timer& timer : Timers()) {
    EXPECT_EQ(timer.tag, std::string(timer.name) + "-time");
    EXPECT_TRUE(timer.level == 1 || timer.level == 2) << timer.name;
  }
}

}  // namespace
}  // namespace megatron
