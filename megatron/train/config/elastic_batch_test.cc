#include "megatron/train/config/elastic_batch.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::absl_testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

ElasticRule Rule(int64_t max_batch, std::vector<int64_t> micro_batches, int64_t min_ranks = 1,
                 int64_t max_ranks = 10000) {
  ElasticRule rule;
  rule.max_batch = max_batch;
  rule.micro_batches = std::move(micro_batches);
  rule.min_ranks = min_ranks;
  rule.max_ranks = max_ranks;
  return rule;
}

// These are the values of DeepSpeed's compute_elastic_config.
TEST(ElasticBatchTest, IsDeepSpeeds) {
  const ElasticRule rule = Rule(10000, {8, 12, 16, 17}, 32, 1500);
  const absl::StatusOr<ElasticBatch> batch = ChooseElasticBatch(rule);
  ASSERT_TRUE(batch.ok()) << batch.status();
  EXPECT_EQ(batch->size, 9792);
  EXPECT_THAT(batch->rank_counts,
              ElementsAre(32, 34, 36, 48, 51, 64, 68, 72, 96, 102, 136, 144, 153, 192, 204, 272,
                          288, 306, 408, 576, 612, 816, 1224));
  EXPECT_EQ(ElasticMicroBatch(rule, 9792, 64), 17);
  EXPECT_EQ(ElasticMicroBatch(rule, 9792, 128), 0);

  const auto counts = [](const ElasticRule& other) {
    const absl::StatusOr<ElasticBatch> chosen = ChooseElasticBatch(other);
    EXPECT_TRUE(chosen.ok()) << chosen.status();
    return std::make_pair(chosen->size, chosen->rank_counts.size());
  };
  EXPECT_EQ(counts(Rule(2000, {2, 4, 6})), std::make_pair(int64_t{1680}, size_t{32}));
  EXPECT_EQ(counts(Rule(512, {4, 8}, 1, 64)), std::make_pair(int64_t{480}, size_t{15}));
  EXPECT_EQ(counts(Rule(1536, {1, 2, 4}, 8, 1024)), std::make_pair(int64_t{1440}, size_t{29}));
}

// Each number of ranks up to the batch is tried.
TEST(ElasticBatchTest, CountsAreThoseThatCanShareTheBatch) {
  for (const ElasticRule& rule :
       {Rule(2000, {2, 4, 6}), Rule(600, {3, 5}, 2, 77), Rule(48, {16}), Rule(64, {1, 64})}) {
    const absl::StatusOr<ElasticBatch> batch = ChooseElasticBatch(rule);
    ASSERT_TRUE(batch.ok()) << batch.status();
    EXPECT_LE(batch->size, rule.max_batch);
    std::vector<int64_t> counts;
    for (int64_t ranks = rule.min_ranks; ranks <= std::min(rule.max_ranks, batch->size); ++ranks) {
      if (ElasticMicroBatch(rule, batch->size, ranks) > 0) counts.push_back(ranks);
    }
    EXPECT_EQ(batch->rank_counts, counts);
  }
}

TEST(ElasticBatchTest, OfEqualsTheLargerIsTakenOrTheSmaller) {
  // 4 and 6 can both be shared by 1 and 2 ranks, and by no others up to 2.
  ElasticRule rule = Rule(7, {2, 3}, 1, 2);
  EXPECT_EQ(ChooseElasticBatch(rule)->size, 6);
  rule.prefer_larger = false;
  EXPECT_EQ(ChooseElasticBatch(rule)->size, 4);
}

TEST(ElasticBatchTest, WholeNodesAreTheRuleOfTheirRanks) {
  ElasticRule nodes = Rule(2000, {2, 4, 6}, 9, 100);
  nodes.ranks_per_node = 4;
  const absl::StatusOr<ElasticBatch> batch = ChooseElasticBatch(nodes),
                                     ranks = ChooseElasticBatch(Rule(500, {2, 4, 6}, 2, 25));
  ASSERT_TRUE(batch.ok() && ranks.ok()) << batch.status() << ranks.status();
  EXPECT_EQ(batch->size, 4 * ranks->size);
  ASSERT_EQ(batch->rank_counts.size(), ranks->rank_counts.size());
  for (size_t i = 0; i < batch->rank_counts.size(); ++i)
    EXPECT_EQ(batch->rank_counts[i], 4 * ranks->rank_counts[i]);
}

TEST(ElasticBatchTest, WhatCannotBeSharedIsAnError) {
  EXPECT_THAT(
      ChooseElasticBatch(Rule(10, {2, 16})),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("micro_batch_sizes holds 16")));
  EXPECT_THAT(ChooseElasticBatch(Rule(48, {16}, 5, 7)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("from 5 to 7")));
  // The least common multiple has 60 bits, and does not count.
  EXPECT_EQ(ChooseElasticBatch(Rule(1 << 21, {1048573, 1048574, 1048575}))->size, 1048575 * 2);
}

TEST(ElasticBatchTest, TheRuleOfAConfiguration) {
  config::PretrainConfig config;
  config.mutable_parallel()->set_tensor_model_parallel_size(2);
  config.mutable_parallel()->set_pipeline_model_parallel_size(2);
  config::ElasticityConfig* const section = config.mutable_elasticity();
  section->set_min_gpus(9);
  section->set_max_gpus(64);
  absl::StatusOr<ElasticRule> rule = ElasticRuleOf(config);
  ASSERT_TRUE(rule.ok()) << rule.status();
  EXPECT_THAT(rule->micro_batches, ElementsAre(2, 4, 6));
  EXPECT_EQ(rule->min_ranks, 3);
  EXPECT_EQ(rule->max_ranks, 16);
  EXPECT_EQ(rule->ranks_per_node, 1);
  section->set_num_gpus_per_node(8);
  section->add_micro_batch_sizes(5);
  rule = ElasticRuleOf(config);
  ASSERT_TRUE(rule.ok()) << rule.status();
  EXPECT_EQ(rule->ranks_per_node, 2);
  EXPECT_EQ(rule->min_ranks, 2);
  EXPECT_EQ(rule->max_ranks, 16);
  EXPECT_THAT(rule->micro_batches, ElementsAre(5));
  section->set_num_gpus_per_node(6);
  EXPECT_THAT(ElasticRuleOf(config),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a model has 4 ranks")));
}

TEST(ElasticBatchTest, NeighboursAreJoined) {
  EXPECT_EQ(DescribeRankCounts({1, 2, 3, 4, 6, 8, 9, 12}), "1-4, 6, 8, 9, 12");
  EXPECT_EQ(DescribeRankCounts({7}), "7");
}

}  // namespace
}  // namespace megatron
