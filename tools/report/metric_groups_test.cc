#include "tools/report/metric_groups.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron::report {
namespace {

using ::testing::ElementsAre;

TEST(MetricGroupsTest, ANameIsSplitFromWhatEvaluationsAdd) {
  EXPECT_EQ(SplitMetricName("lm loss").base, "lm loss");
  EXPECT_FALSE(SplitMetricName("lm loss").validation);
  const MetricName validation = SplitMetricName("sop loss validation");
  EXPECT_EQ(validation.base, "sop loss");
  EXPECT_TRUE(validation.validation);
  const MetricName perplexity = SplitMetricName("lm loss test ppl");
  EXPECT_EQ(perplexity.base, "lm loss");
  EXPECT_TRUE(perplexity.test && perplexity.perplexity);
  // The loss on one of several validation sets is a metric of its own.
  EXPECT_EQ(SplitMetricName("lm loss validation my test").base, "lm loss validation my test");
  EXPECT_TRUE(SplitMetricName("lm loss validation my test").validation);
  // So is the loss on a training file, whatever its name.
  for (const char* name : {"lm loss train my test", "lm loss train a validation ppl"}) {
    EXPECT_EQ(SplitMetricName(name).base, name);
    EXPECT_FALSE(SplitMetricName(name).validation || SplitMetricName(name).test);
  }
  // And so is a task's.
  EXPECT_EQ(SplitMetricName("tasks/piqa/acc").base, "tasks/piqa/acc");
  EXPECT_TRUE(SplitMetricName("tasks/piqa/acc").validation);
}

TEST(MetricGroupsTest, EveryMetricOfTheTableHasAPlace) {
  EXPECT_EQ(GroupOf("lm loss"), MetricGroup::kLoss);
  EXPECT_EQ(GroupOf("lm accuracy"), MetricGroup::kLoss);
  EXPECT_EQ(GroupOf("z_loss"), MetricGroup::kExperts);
  EXPECT_EQ(GroupOf("learning-rate"), MetricGroup::kTraining);
  EXPECT_EQ(GroupOf("elapsed_ms"), MetricGroup::kSpeed);
  EXPECT_EQ(GroupOf("tokens_per_second"), MetricGroup::kSpeed);
  EXPECT_EQ(GroupOf("mfu"), MetricGroup::kSpeed);
  EXPECT_EQ(GroupOf("mem-max-allocated-bytes"), MetricGroup::kMemory);
  EXPECT_EQ(GroupOf("consumed_samples"), MetricGroup::kHidden);
  EXPECT_EQ(GroupOf("what is this"), MetricGroup::kOther);
  EXPECT_EQ(GroupOf("lm loss validation news"), MetricGroup::kLoss);
  EXPECT_EQ(GroupOf("tasks/piqa/acc"), MetricGroup::kLoss);
  EXPECT_EQ(GroupOf("lm loss train news"), MetricGroup::kLoss);
  EXPECT_EQ(FindMetric("lm loss train news"), &metric::kSourceLoss);
}

Metric Named(const char* key, const char* unit) {
  return {key, key, unit, MetricAxis::kIterations, MetricRate::kEachStep, "", ""};
}

TEST(MetricGroupsTest, SharesThatBeginAlikeAreOfOneWhole) {
  const Metric compute = Named("share/compute", "share of time"),
               bubble = Named("share/bubble", "share of time"), data = Named("share/data", "share"),
               lone = Named("lone share", "share"), other = Named("share/x", "ms");
  const std::vector<const Metric*> table = {&compute, &bubble, &data, &lone, &other};
  EXPECT_TRUE(IsShareOfAWhole(compute, table));
  EXPECT_TRUE(IsShareOfAWhole(data, table));
  EXPECT_FALSE(IsShareOfAWhole(lone, table));
  EXPECT_FALSE(IsShareOfAWhole(other, table));
  EXPECT_FALSE(IsShareOfAWhole(compute, {&compute, &bubble}));
  EXPECT_EQ(WholeOf("share/compute"), "share/");
  EXPECT_TRUE(IsPart("share/compute"));
  EXPECT_FALSE(IsPart("share/all-communication"));
  EXPECT_FALSE(IsPart("share/hidden-communication"));
}

TEST(MetricGroupsTest, TheOrderIsThatOfTheTable) {
  EXPECT_THAT(InTableOrder({"zz", "elapsed_ms", "lm loss", "aa", "lm loss", "grad-norm"}),
              ElementsAre("lm loss", "grad-norm", "elapsed_ms", "aa", "zz"));
}

}  // namespace
}  // namespace megatron::report
