#include "megatron/train/metrics/time_report.h"

#include <cstring>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/train/metrics/metric_table.h"

namespace megatron {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

RankTimes Rank(int64_t compute, int64_t tensor_parallel, int64_t host) {
  RankTimes times;
  times.by_category[static_cast<int>(TimeCategory::kCompute)] = compute;
  times.by_category[static_cast<int>(TimeCategory::kTensorParallel)] = tensor_parallel;
  times.by_category[static_cast<int>(TimeCategory::kHost)] = host;
  std::strcpy(times.host.data(), "gpu08");
  return times;
}

TEST(TimeReportTest, TheLineHasTheSharesAndTheSlowestRank) {
  RankTimes fast = Rank(700, 280, 20), slow = Rank(800, 180, 20);
  fast.hidden = slow.hidden = 50;
  EXPECT_EQ(FormatTimeLine(MakeTimeReport({fast, slow}, 3)),
            " time (%): compute 75.0 (70.0 to 80.0) | tp 23.0 (18.0 to 28.0) | host 2.0 |"
            " all communication 23.0 (18.0 to 28.0) | hidden 5.0 | slowest: rank 1 on gpu08,"
            " +14.3");
}

TEST(TimeReportTest, ADifferenceThatIsNoiseNamesNoRank) {
  EXPECT_THAT(FormatTimeLine(MakeTimeReport({Rank(500, 0, 0), Rank(509, 0, 0)}, 3)),
              Not(HasSubstr("slowest")));
  EXPECT_THAT(FormatTimeLine(MakeTimeReport({Rank(500, 0, 0), Rank(511, 0, 0)}, 3)),
              HasSubstr("slowest: rank 1"));
}

TEST(TimeReportTest, AFewShortStepsNameNoRank) {
  EXPECT_THAT(FormatTimeLine(MakeTimeReport({Rank(500, 0, 0), Rank(900, 0, 0)}, 2)),
              Not(HasSubstr("slowest")));
  const int64_t second = 1000 * 1000 * 1000;
  EXPECT_THAT(FormatTimeLine(MakeTimeReport({Rank(20 * second, 0, 0), Rank(30 * second, 0, 0)}, 1)),
              HasSubstr("slowest: rank 1"));
}

TEST(TimeReportTest, OneRankIsComparedWithNone) {
  EXPECT_EQ(FormatTimeLine(MakeTimeReport({Rank(970, 0, 30)}, 1)),
            " time (%): compute 97.0 | host 3.0 |");
}

TEST(TimeReportTest, RanksAreComparedWithThoseOfTheirStage) {
  std::vector<RankTimes> ranks = {Rank(100, 0, 0), Rank(120, 0, 0), Rank(300, 0, 0),
                                  Rank(310, 0, 0)};
  ranks[2].stage = ranks[3].stage = 1;
  const TimeReport report = MakeTimeReport(ranks, 1);
  EXPECT_EQ(report.slowest_rank, 1);
  EXPECT_NEAR(report.slowest_excess, 0.2, 1e-9);
  // Stages of one rank each are compared with each other.
  for (int i = 0; i < 4; ++i) ranks[i].stage = i;
  EXPECT_EQ(MakeTimeReport(ranks, 1).slowest_rank, 3);
}

TEST(TimeReportTest, MetricsHaveTheMeansOfAllRanks) {
  std::vector<RankTimes> ranks = {Rank(700, 280, 20), Rank(800, 180, 20)};
  for (RankTimes& rank : ranks) rank.timers[TimerOfSpan("optimizer")] = 30'000'000;
  ranks[1].timers[TimerOfSpan("forward")] = 8'000'000;
  const TimeReport report = MakeTimeReport(ranks, 4);
  StepMetrics step;
  AddTimes(report, /*timing_log_level=*/1, &step);
  EXPECT_EQ(step.times, &report);
  const auto share = [&](TimeCategory category) {
    return step.time_shares.categories[static_cast<int>(category)];
  };
  EXPECT_DOUBLE_EQ(share(TimeCategory::kCompute).value(), 0.75);
  EXPECT_DOUBLE_EQ(share(TimeCategory::kTensorParallel).value(), 0.23);
  EXPECT_EQ(share(TimeCategory::kCheckpoint), 0);
  EXPECT_FALSE(share(TimeCategory::kExpertParallel).has_value());
  constexpr int kCompute = static_cast<int>(TimeCategory::kCompute);
  EXPECT_DOUBLE_EQ(step.time_shares.least[kCompute].value(), 0.7);
  EXPECT_DOUBLE_EQ(step.time_shares.most[kCompute].value(), 0.8);
  EXPECT_FALSE(step.time_shares.most[static_cast<int>(TimeCategory::kExpertParallel)].has_value());
  EXPECT_DOUBLE_EQ(step.time_shares.communication.value(), 0.23);
  EXPECT_EQ(step.time_shares.slowest_rank, 1);
  ASSERT_EQ(step.timers.size(), 1u);
  EXPECT_EQ(step.timers[0].name, "optimizer-time");
  EXPECT_DOUBLE_EQ(step.timers[0].value, 0.0075);
  EXPECT_NE(FindTimer(step.timers[0].name), nullptr);
  StepMetrics all;
  AddTimes(report, /*timing_log_level=*/2, &all);
  EXPECT_EQ(all.timers.size(), 2u);
}

TEST(TimeReportTest, EachCategoryHasTheMetricOfItsName) {
  for (int i = 0; i < kNumTimeCategories; ++i) {
    const auto category = static_cast<TimeCategory>(i);
    EXPECT_EQ(ShareMetric(category).key, std::string("share/") + Name(category));
  }
}

TEST(TimeReportTest, MemoryIsThatOfTheRankWithTheMost) {
  RankTimes a = Rank(1, 0, 0), b = a;
  a.held_bytes = 3 << 20;
  b.held_bytes = 2 << 20;
  a.peak_bytes = 4 << 20;
  b.peak_bytes = (5 << 20) + (1 << 19);
  a.planned_bytes = b.planned_bytes = 6 << 20;
  EXPECT_EQ(FormatMemoryLine(MakeTimeReport({a}, 1)),
            " memory of a rank (MiB): held 3.0 | peak 4.0 | planned 6.0 |");
  const TimeReport two = MakeTimeReport({a, b}, 1);
  EXPECT_EQ(FormatMemoryLine(two),
            " memory of a rank (MiB): held 3.0 | peak 5.5 | planned 6.0 |"
            " the most: rank 1 on gpu08 |");
  EXPECT_EQ(PeakBytes(two), b.peak_bytes);
  b.device_used_bytes = 7 << 20;
  b.device_bytes = 80 << 20;
  EXPECT_THAT(FormatMemoryLine(MakeTimeReport({a, b}, 1)),
              HasSubstr(" GPU of rank 1 on gpu08: 7.0 of 80.0 |"));
}

}  // namespace
}  // namespace megatron
