// What CheckSchedule says of a schedule's time is what ranks that run it take. The ranks sleep in
// place of computing, so that this holds on any number of cores; a loaded machine wakes them late,
// so each schedule has several tries.

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gtest/gtest.h"
#include "megatron/pipeline/schedule_kind.h"
#include "megatron/pipeline/sleep_through.h"

namespace megatron {
namespace {

constexpr int kStages = 4, kMicrobatches = 4, kTries = 12;
constexpr double kTolerance = 0.1;

struct Case {
  const char* name;
  ScheduleKind kind;
  int chunks;
};
constexpr Case kCases[] = {{"GPipe", ScheduleKind::kGPipe, 1},
                           {"1F1B", ScheduleKind::kOneForwardOneBackward, 1},
                           {"interleaved", ScheduleKind::kOneForwardOneBackward, 2},
                           {"ZB-H1", ScheduleKind::kZeroBubbleH1, 1},
                           {"ZB-V", ScheduleKind::kZeroBubbleV, 2}};

// A model that takes as long in forward and in both parts of backward.
ActionCosts CostsOf(const Case& c) {
  const double seconds = 0.016 / c.chunks;
  return {seconds, seconds, seconds};
}

Schedule ScheduleOf(const Case& c) {
  ScheduleOptions options;
  options.kind = c.kind;
  options.stages = kStages;
  options.microbatches = kMicrobatches;
  options.chunks = c.chunks;
  return MakeSchedule(options);
}

// The bubble that comes closest to what is predicted.
double MeasuredBubble(const Case& c, double predicted) {
  double best = INFINITY;
  for (int i = 0; i < kTries && std::abs(best - predicted) > kTolerance * predicted; ++i) {
    const auto report = SleepThrough(ScheduleOf(c), CostsOf(c));
    EXPECT_THAT(report, absl_testing::IsOk());
    if (!report.ok()) return best;
    if (std::abs(report->bubble - predicted) < std::abs(best - predicted)) best = report->bubble;
  }
  return best;
}

TEST(MeasuredBubbleTest, AgreesWithWhatIsPredicted) {
  for (const Case& c : kCases) {
    const double predicted = CheckSchedule(ScheduleOf(c), CostsOf(c))->bubble;
    EXPECT_NEAR(MeasuredBubble(c, predicted), predicted, kTolerance * predicted) << c.name;
  }
}

// GPipe and 1F1B are as long as each other, but for memory: they are told apart by what is held.
TEST(MeasuredBubbleTest, ZeroBubbleSchedulesAreFasterThanTheOthers) {
  std::vector<double> times;
  for (const Case& c : kCases) {
    double least = INFINITY;
    for (int i = 0; i < 3; ++i)
      least = std::min(least, SleepThrough(ScheduleOf(c), CostsOf(c))->time);
    RecordProperty(c.name, std::to_string(least));
    times.push_back(least);
  }
  const double gpipe = times[0], one = times[1], h1 = times[3], v = times[4];
  EXPECT_LT(h1, 0.9 * one);
  EXPECT_LT(v, h1);
  EXPECT_NEAR(one, gpipe, 0.1 * gpipe);
}

}  // namespace
}  // namespace megatron
