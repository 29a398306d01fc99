#include "megatron/tensor/trace/span_times.h"

#include <numeric>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::testing::SizeIs;

int64_t In(const SpanTimes& times, TimeCategory category) {
  return times.by_category()[static_cast<int>(category)];
}

TEST(SpanTimesTest, EveryMomentCountsOnce) {
  SpanTimes times(TimeCategory::kHost, 100);
  times.Turn(110, TimeCategory::kCompute);
  times.Turn(150, TimeCategory::kTensorParallel);
  times.Turn(157, TimeCategory::kCompute);
  times.Turn(200, TimeCategory::kHost);
  EXPECT_EQ(In(times, TimeCategory::kHost), 10);
  EXPECT_EQ(In(times, TimeCategory::kCompute), 83);
  EXPECT_EQ(In(times, TimeCategory::kTensorParallel), 7);
  EXPECT_EQ(std::accumulate(times.by_category().begin(), times.by_category().end(), int64_t{0}),
            100);
}

TEST(SpanTimesTest, SpansAreTheSameByNameAndGroup) {
  SpanTimes times(TimeCategory::kHost, 0);
  const std::string name = "update", tp = "tp-0", dp = "dp-0";
  const TraceCall in_tp = {tp, 2, 64}, in_dp = {dp, 4, 64};
  const size_t plain = times.Find("update", nullptr);
  EXPECT_EQ(times.Find(name.c_str(), nullptr), plain);
  const size_t first = times.Find("all-reduce", &in_tp);
  EXPECT_NE(times.Find("all-reduce", &in_dp), first);
  EXPECT_NE(times.Find("all-gather", &in_tp), first);
  EXPECT_EQ(times.Find("all-reduce", &in_tp), first);
  times.Add(plain, 5, 0);
  times.Add(first, 7, 64);
  times.Add(first, 8, 64);
  const std::vector<SpanTotal> totals = times.Totals();
  ASSERT_THAT(totals, SizeIs(4));
  EXPECT_EQ(totals[plain].count, 1);
  EXPECT_EQ(totals[plain].nanoseconds, 5);
  EXPECT_EQ(totals[plain].group, "");
  EXPECT_EQ(totals[first].name, "all-reduce");
  EXPECT_EQ(totals[first].group, "tp-0");
  EXPECT_EQ(totals[first].ranks, 2);
  EXPECT_EQ(totals[first].count, 2);
  EXPECT_EQ(totals[first].bytes, 128);
  EXPECT_EQ(totals[first].nanoseconds, 15);
}

TEST(SpanTimesTest, ACallThatIsSlowerThanTheFastestOfItsSizeHasWaited) {
  SpanTimes times(TimeCategory::kHost, 0);
  const std::string group = "pp-0";
  const TraceCall call = {group, 2, 0};
  const size_t place = times.Find("exchange", &call);
  const auto waiting = [&] { return times.Totals()[place].waiting; };
  times.Add(place, 100, 1000);
  EXPECT_EQ(waiting(), 0);
  times.Add(place, 140, 1000);
  EXPECT_EQ(waiting(), 40);
  times.Add(place, 90, 1000);
  times.Add(place, 100, 1000);
  EXPECT_EQ(waiting(), 50);
  times.Add(place, 5000, 100000);  // the first of its size
  EXPECT_EQ(waiting(), 50);
  times.Add(place, 3, 0);
  times.Add(place, 4, 0);
  EXPECT_EQ(waiting(), 51);
}

}  // namespace
}  // namespace megatron
