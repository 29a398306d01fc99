#include "tools/report/run_metrics.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron::report {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

std::string Step(int iteration, const std::string& loss) {
  return absl::StrCat("{\"iteration\":", iteration, ",\"consumed_samples\":", 8 * iteration,
                      ",\"lm loss\":", loss, ",\"skipped\":false}\n");
}

std::string Evaluation(int iteration, const std::string& loss) {
  return absl::StrCat("{\"iteration\":", iteration, ",\"lm loss validation\":", loss, "}\n");
}

TEST(RunMetricsTest, EachKeyIsAColumn) {
  const RunMetrics metrics = ParseRunMetrics(
      absl::StrCat(Step(1, "5.5"), Step(2, "5.25"), Evaluation(2, "5"), Step(3, "4")));
  EXPECT_EQ(metrics.steps, 3);
  EXPECT_EQ(metrics.last_iteration, 3);
  EXPECT_EQ(metrics.unreadable_lines, 0);
  EXPECT_THAT(metrics.Find("lm loss")->points,
              ElementsAre(Pair(1, 5.5), Pair(2, 5.25), Pair(3, 4)));
  EXPECT_THAT(metrics.Find("lm loss validation")->points, ElementsAre(Pair(2, 5)));
  EXPECT_THAT(metrics.Find("skipped")->points, ElementsAre(Pair(1, 0), Pair(2, 0), Pair(3, 0)));
  EXPECT_EQ(metrics.Find("iteration"), nullptr);
}

TEST(RunMetricsTest, MetricsThatNobodyKnowsAreColumnsToo) {
  const RunMetrics metrics = ParseRunMetrics(
      "{\"iteration\":1,\"consumed_samples\":1,\"new/metric\":0.5,\"text\":\"a\",\"list\":[1]}\n");
  EXPECT_THAT(metrics.Find("new/metric")->points, ElementsAre(Pair(1, 0.5)));
  EXPECT_EQ(metrics.Find("text"), nullptr);
  EXPECT_EQ(metrics.Find("list"), nullptr);
}

TEST(RunMetricsTest, NumbersThatAreNotFiniteAreListed) {
  const RunMetrics metrics =
      ParseRunMetrics(absl::StrCat(Step(1, "5"), Step(2, "null"), Step(3, "1e999"), Step(4, "4")));
  EXPECT_THAT(metrics.Find("lm loss")->points, ElementsAre(Pair(1, 5), Pair(4, 4)));
  EXPECT_THAT(metrics.Find("lm loss")->absent, ElementsAre(2));
  EXPECT_EQ(metrics.unreadable_lines, 1);  // JSON has no such number
}

TEST(RunMetricsTest, TornLinesArePassedOver) {
  const std::string text =
      absl::StrCat(Step(1, "5"), "{\"iteration\":2,\"consu\n", absl::string_view("\0\0\0\n", 4),
                   "\n", "hello\n", "[1]\n", "{\"iteration\":\"3\"}\n", "{\"iteration\":-1}\n",
                   "{\"iteration\":18446744073709551615}\n", Step(4, "4"), "{\"iteration\":5,");
  const RunMetrics metrics = ParseRunMetrics(text);
  EXPECT_THAT(metrics.Find("lm loss")->points, ElementsAre(Pair(1, 5), Pair(4, 4)));
  EXPECT_EQ(metrics.unreadable_lines, 8);
}

TEST(RunMetricsTest, StepsThatAreTakenAgainReplaceThoseOfBefore) {
  const RunMetrics metrics =
      ParseRunMetrics(absl::StrCat(Step(1, "5"), Step(2, "null"), Step(3, "3"),
                                   Evaluation(3, "3.5"), Step(2, "4.5"), Step(3, "3.25")));
  EXPECT_THAT(metrics.Find("lm loss")->points,
              ElementsAre(Pair(1, 5), Pair(2, 4.5), Pair(3, 3.25)));
  EXPECT_THAT(metrics.Find("lm loss")->absent, IsEmpty());
  EXPECT_THAT(metrics.Find("lm loss validation")->points, IsEmpty());
  EXPECT_EQ(metrics.steps, 3);
  EXPECT_EQ(metrics.repeated_records, 2);
}

TEST(RunMetricsTest, HostileTextNeedsLittle) {
  std::string keys = "{\"iteration\":1,\"consumed_samples\":1";
  for (int i = 0; i < 1000; ++i) absl::StrAppend(&keys, ",\"k", i, "\":", i);
  EXPECT_EQ(ParseRunMetrics(keys + "}\n").columns.size(), RunMetrics::kMostColumns);
  EXPECT_GT(ParseRunMetrics(keys + "}\n").ignored_keys, 0);

  const std::string deep = "{\"iteration\":1,\"a\":" + std::string(100000, '[') + "\n";
  EXPECT_EQ(ParseRunMetrics(deep).unreadable_lines, 1);
  EXPECT_EQ(ParseRunMetrics(std::string(2 << 20, '{')).unreadable_lines, 1);
  EXPECT_EQ(ParseRunMetrics(std::string(1 << 20, '\n')).unreadable_lines, 0);
  EXPECT_EQ(ParseRunMetrics("").steps, 0);
}

}  // namespace
}  // namespace megatron::report
