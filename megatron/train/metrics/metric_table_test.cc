#include "megatron/train/metrics/metric_table.h"

#include <set>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/train/metrics/jsonl_writer.h"
#include "megatron/train/metrics/step_metrics.h"
#include "nlohmann/json.hpp"

namespace megatron {
namespace {

using ::testing::Contains;
using ::testing::IsEmpty;
using ::testing::Not;

TEST(MetricTableTest, EveryMetricIsExplained) {
  for (const Metric* metric : AllMetrics()) {
    const absl::string_view key = metric->key, tag = metric->tag, help = metric->help;
    EXPECT_FALSE(key.empty() && tag.empty()) << help;
    EXPECT_GT(help.size(), 10) << key << tag;
    EXPECT_TRUE(absl::EndsWith(help, ".")) << help;
    EXPECT_TRUE(absl::ascii_isupper(help[0])) << help;
    EXPECT_FALSE(absl::StrContains(help, "|")) << help;
    EXPECT_TRUE(!tag.empty() || absl::string_view(metric->chart).empty()) << key;
  }
}

TEST(MetricTableTest, NoTwoMetricsHaveOneName) {
  std::set<std::string> keys, tags;
  for (const Metric* metric : AllMetrics()) {
    EXPECT_TRUE(metric->key[0] == '\0' || keys.insert(metric->key).second) << metric->key;
    EXPECT_TRUE(metric->tag[0] == '\0' || tags.insert(metric->tag).second) << metric->tag;
  }
}

TEST(MetricTableTest, EveryKeyOfMetricsJsonlIsThere) {
  std::set<std::string> keys;
  for (const Metric* metric : AllMetrics()) keys.insert(metric->key);
  StepMetrics step;
  step.grad_norm = step.params_norm = 1;
  step.num_zeros = 1;
  step.sent_gradients = 0.5;
  step.speed.mfu = 0.5;
  const auto object = nlohmann::json::parse(ToJsonLine(step));
  EXPECT_EQ(object.size(), 15);
  for (const auto& [key, value] : object.items()) EXPECT_THAT(keys, Contains(key));
  step.time_shares.categories.fill(0.5);
  step.time_shares.least.fill(0.25);
  step.time_shares.most.fill(0.75);
  step.time_shares.communication = step.time_shares.hidden = 0.5;
  step.time_shares.slowest_rank = 3;
  step.time_shares.slowest_excess = 0.5;
  const auto logged = nlohmann::json::parse(ToJsonLine(step));
  EXPECT_EQ(logged.size(), 15 + 3 * kNumTimeCategories + 4);
  for (const auto& [key, value] : logged.items()) EXPECT_THAT(keys, Contains(key));
  keys.insert(EvaluationName(kLmLossName, /*on_test_set=*/false));
  const auto evaluation = nlohmann::json::parse(ToJsonLine(EvaluationMetrics()));
  for (const auto& [key, value] : evaluation.items()) EXPECT_THAT(keys, Contains(key));
}

TEST(MetricTableTest, MeasuresAreFoundByTheirNames) {
  ASSERT_THAT(ModelMeasures(), Not(IsEmpty()));
  EXPECT_STREQ(ModelMeasures()[0].key, kLmLossName);
  EXPECT_EQ(FindMeasure("lm loss"), &ModelMeasures()[0]);
  EXPECT_EQ(FindMeasure("grad-norm"), nullptr);
  EXPECT_EQ(FindMeasure(""), nullptr);
}

TEST(MetricTableTest, ValidationSetsAreFoundInNames) {
  EXPECT_EQ(ValidationSetName("news"), "lm loss validation news");
  EXPECT_EQ(ValidationSetOf("lm loss validation news"), "news");
  EXPECT_EQ(ValidationSetOf("lm loss validation /data/a b"), "/data/a b");
  for (const char* other : {"lm loss validation", "lm loss validation ppl", "lm loss", "news", ""})
    EXPECT_EQ(ValidationSetOf(other), "") << other;
}

TEST(MetricTableTest, TrainingFilesAreFoundInNames) {
  EXPECT_EQ(SourceLossName("news"), "lm loss train news");
  EXPECT_EQ(SourceOf("lm loss train news"), "news");
  EXPECT_EQ(SourceOf("lm loss train /data/a validation"), "/data/a validation");
  EXPECT_EQ(ValidationSetOf(SourceLossName("a validation")), "");
  for (const char* other : {"lm loss train", "lm loss validation news", "lm loss", "news", ""})
    EXPECT_EQ(SourceOf(other), "") << other;
}

TEST(MetricTableTest, TheDescriptionHasTheUnit) {
  EXPECT_EQ(DescribeMetric(metric::kIterationTime),
            "Time of the step, without evaluations and saves. Unit: s.");
  EXPECT_EQ(DescribeMetric(metric::kLearningRate), "Learning rate after the step.");
}

}  // namespace
}  // namespace megatron
