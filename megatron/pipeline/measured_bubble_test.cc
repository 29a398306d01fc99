// Ranks that run a schedule take the time that CheckSchedule predicts. The ranks sleep in
// place of computing, so that this holds on any number of cores; a loaded machine wakes them late,
// so each schedule has several tries, the later ones with longer sleeps, beside which that is less.

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/status/status_matchers.h"
#include "gtest/gtest.h"
#include "megatron/pipeline/schedule_kind.h"
#include "megatron/pipeline/sleep_through.h"

namespace megatron {
namespace {

constexpr int kStages = 4, kTries = 16, kTriesOfOneLength = 4;
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
ActionCosts CostsOf(const Case& c, double stage_seconds = 0.032) {
  const double seconds = stage_seconds / c.chunks;
  return {seconds, seconds, seconds};
}

Schedule ScheduleOf(const Case& c, int microbatches) {
  ScheduleOptions options;
  options.kind = c.kind;
  options.stages = kStages;
  options.microbatches = microbatches;
  options.chunks = c.chunks;
  return MakeSchedule(options);
}

// The bubble that comes closest to what is predicted.
double MeasuredBubble(const Case& c, double predicted) {
  double best = INFINITY;
  for (int i = 0; i < kTries && std::abs(best - predicted) > kTolerance * predicted; ++i) {
    const double stage_seconds = 0.032 * (1 << i / kTriesOfOneLength);
    const auto report = SleepThrough(ScheduleOf(c, kStages), CostsOf(c, stage_seconds));
    EXPECT_THAT(report, absl_testing::IsOk());
    if (!report.ok()) return best;
    if (std::abs(report->bubble - predicted) < std::abs(best - predicted)) best = report->bubble;
  }
  return best;
}

TEST(MeasuredBubbleTest, AgreesWithWhatIsPredicted) {
  for (const Case& c : kCases) {
    const double predicted = CheckSchedule(ScheduleOf(c, kStages), CostsOf(c))->bubble;
    EXPECT_NEAR(MeasuredBubble(c, predicted), predicted, kTolerance * predicted) << c.name;
  }
}

double LeastTime(const Case& c, int microbatches) {
  double least = INFINITY;
  for (int i = 0; i < 3; ++i) {
    const auto report = SleepThrough(ScheduleOf(c, microbatches), CostsOf(c));
    EXPECT_THAT(report, absl_testing::IsOk());
    if (report.ok()) least = std::min(least, report->time);
  }
  ::testing::Test::RecordProperty(c.name, std::to_string(least));
  return least;
}

// No stage holds more than kStages micro-batches: 1F1B never does, and GPipe takes the
// micro-batches in portions of that many.
TEST(MeasuredBubbleTest, WithTheSameMemoryZeroBubbleBeats1F1BAndThatBeatsGPipe) {
  const double gpipe = 2 * LeastTime(kCases[0], kStages);
  const double one = LeastTime(kCases[1], 2 * kStages);
  const double h1 = LeastTime(kCases[3], 2 * kStages);
  const double v = LeastTime(kCases[4], 2 * kStages);
  EXPECT_LT(one, 0.9 * gpipe);
  EXPECT_LT(h1, 0.9 * one);
  EXPECT_LT(v, h1);
}

}  // namespace
}  // namespace megatron
