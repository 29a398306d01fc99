#include "megatron/train/validate/pipeline_config.h"

#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/train/configs/config_loader.h"

namespace megatron {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kBase[] =
    "model { num_layers: 8 hidden_size: 64 num_attention_heads: 4 seq_length: 32 }\n"
    "optimizer { lr: 0.1 }\n"
    "train { micro_batch_size: 1 global_batch_size: 8 train_iters: 16 }\n"
    "parallel { pipeline_model_parallel_size: 2 }\n"
    "data { stories {} }\n";

absl::StatusOr<LoadedConfig> Load(std::vector<std::string> overrides) {
  for (std::string& override : overrides) {
    if (override.find("model.") != 0) override = "parallel." + override;
  }
  return LoadConfigFromString(kBase, "base", overrides, ConfigPurpose::kDryRun);
}

StagePlacement PlacementWith(const std::vector<std::string>& overrides) {
  const auto loaded = Load(overrides);
  EXPECT_THAT(loaded, absl_testing::IsOk());
  return loaded.ok() ? ToPlacement(loaded->config) : StagePlacement();
}

TEST(PipelineConfigTest, SharesLayersOutEvenly) {
  EXPECT_EQ(PlacementWith({}).chunks, 1);
  EXPECT_EQ(PlacementWith({"num_layers_per_virtual_pipeline_stage=2"}).chunks, 2);
  EXPECT_EQ(PlacementWith({"num_virtual_stages_per_pipeline_rank=4"}).chunks, 4);
  EXPECT_THAT(PlacementWith({"num_virtual_stages_per_pipeline_rank=4"}).layers, IsEmpty());
}

TEST(PipelineConfigTest, EmbeddingAndLossCountAsLayersIfAskedTo) {
  EXPECT_THAT(
      PlacementWith({"account_for_embedding_in_pipeline_split=true", "model.num_layers=7"}).layers,
      ElementsAre(3, 4));
  EXPECT_THAT(
      PlacementWith({"account_for_loss_in_pipeline_split=true", "model.num_layers=7"}).layers,
      ElementsAre(4, 3));
  EXPECT_THAT(PlacementWith({"account_for_embedding_in_pipeline_split=true",
                             "account_for_loss_in_pipeline_split=true", "model.num_layers=10",
                             "num_layers_per_virtual_pipeline_stage=3"})
                  .layers,
              ElementsAre(2, 3, 3, 2));
}

TEST(PipelineConfigTest, ALayoutSaysWhereLayersGo) {
  const StagePlacement two = PlacementWith({"pipeline_model_parallel_layout=Et*5|tttL"});
  EXPECT_EQ(two.chunks, 1);
  EXPECT_THAT(two.layers, ElementsAre(5, 3));
  const StagePlacement four = PlacementWith({"pipeline_model_parallel_layout=E|t*5|ttt|L"});
  EXPECT_EQ(four.chunks, 2);
  EXPECT_THAT(four.layers, ElementsAre(0, 5, 3, 0));
}

TEST(PipelineConfigTest, ZbVHasTwoPartsOnEachRankAndBothEndsOnTheFirst) {
  const StagePlacement even = PlacementWith({"pipeline_schedule=zb_v"});
  EXPECT_EQ(even.chunks, 2);
  EXPECT_EQ(even.order, PartOrder::kBackAndForth);
  EXPECT_EQ(even.last_stage(), 0);
  EXPECT_THAT(even.layers, IsEmpty());
  EXPECT_THAT(
      PlacementWith({"pipeline_schedule=zb_v", "pipeline_model_parallel_layout=Et|ttt|ttt|tL"})
          .layers,
      ElementsAre(1, 3, 3, 1));
}

TEST(PipelineConfigTest, SchedulesHaveTheNamesThatUsersKnow) {
  const auto kind = [](const std::string& name, const std::string& parts) {
    const auto loaded =
        Load(parts.empty() ? std::vector<std::string>{"pipeline_schedule=" + name}
                           : std::vector<std::string>{"pipeline_schedule=" + name, parts});
    EXPECT_THAT(loaded, absl_testing::IsOk());
    return ToScheduleKind(loaded->config.parallel());
  };
  EXPECT_EQ(kind("gpipe", ""), ScheduleKind::kGPipe);
  EXPECT_EQ(kind("1f1b", ""), ScheduleKind::kOneForwardOneBackward);
  EXPECT_EQ(kind("interleaved", "num_virtual_stages_per_pipeline_rank=2"),
            ScheduleKind::kOneForwardOneBackward);
  EXPECT_EQ(kind("zb_h1", ""), ScheduleKind::kZeroBubbleH1);
  EXPECT_EQ(kind("zb_v", ""), ScheduleKind::kZeroBubbleV);
}

// Each case breaks one rule, and has a piece of the error that must result.
TEST(PipelineConfigTest, RefusesByName) {
  struct Case {
    std::vector<std::string> overrides;
    std::string error;
  };
  const std::vector<Case> cases = {
      {{"model.num_layers=7"}, "must be divisible by parallel.pipeline_model_parallel_size = 2"},
      {{"model.num_layers=6", "pipeline_schedule=zb_v"}, "times 2, or parallel.pipeline_model"},
      {{"account_for_loss_in_pipeline_split=true"}, "as model.num_layers = 8"},
      {{"pipeline_schedule=dualpipe"}, "expects \"gpipe\", \"1f1b\", "},
      {{"pipeline_schedule=interleaved"}, "needs several parts on each rank: set"},
      {{"pipeline_schedule=1f1b", "num_virtual_stages_per_pipeline_rank=2"},
       "takes one part on each rank, and there are 2 by "
       "parallel.num_virtual_stages_per_pipeline_rank = 2"},
      {{"pipeline_schedule=zb_h1", "pipeline_model_parallel_layout=E|t*4|t*4|L"},
       "takes one part on each rank, and there are 2 by parallel.pipeline_model_parallel_layout"},
      {{"pipeline_schedule=zb_v", "pipeline_model_parallel_layout=Et*4|t*4L"},
       "needs two parts on each rank, not the 1 of"},
      {{"pipeline_schedule=zb_v", "decoder_first_pipeline_num_layers=2"},
       "decoder_first_pipeline_num_layers = 2: has no effect with parallel.pipeline_schedule"},
      {{"num_virtual_stages_per_pipeline_rank=2", "num_layers_per_virtual_pipeline_stage=2"},
       "contradicts parallel.num_layers_per_virtual_pipeline_stage = 2"},
      {{"pipeline_model_parallel_layout=Et*8|L|"}, "must end with L"},
      {{"pipeline_model_parallel_layout=Et*4|t*2|t*2L"}, "has 3 parts, which"},
      {{"pipeline_model_parallel_layout=Et*4|t*5L"}, "has 9 layers, not model.num_layers = 8"},
      {{"pipeline_model_parallel_layout=Et*4|t*4,mL"}, "multi-token prediction"},
      {{"pipeline_model_parallel_layout=Et*4|t*4L", "decoder_last_pipeline_num_layers=4"},
       "has no effect with parallel.pipeline_model_parallel_layout"},
      {{"microbatch_group_size_per_virtual_pipeline_stage=4"}, "without an interleaved schedule"},
      {{"microbatch_group_size_per_virtual_pipeline_stage=1",
        "num_virtual_stages_per_pipeline_rank=2"},
       "must be at least parallel.pipeline_model_parallel_size = 2"},
      {{"microbatch_group_size_per_virtual_pipeline_stage=7",
        "num_virtual_stages_per_pipeline_rank=2"},
       "leaves a group of less than parallel.pipeline_model_parallel_size = 2"},
      {{"data_parallel_size=8", "num_virtual_stages_per_pipeline_rank=2"},
       "makes 1 micro-batches, which parallel.num_virtual_stages_per_pipeline_rank = 2"},
      {{"pipeline_model_parallel_size=1", "pipeline_schedule=zb_h1"}, "has no effect with"},
      {{"pipeline_model_parallel_size=1", "pipeline_model_parallel_layout=Et*8L"},
       "has no effect with"},
  };
  for (const Case& c : cases) {
    EXPECT_THAT(Load(c.overrides),
                absl_testing::StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(c.error)))
        << ::testing::PrintToString(c.overrides);
  }
}

TEST(PipelineConfigTest, RecomputationMakesTheInputsPartLonger) {
  const auto costs = [](std::vector<std::string> overrides) {
    overrides.push_back("model.seq_length=64");
    return ToActionCosts(
               LoadConfigFromString(kBase, "base", overrides, ConfigPurpose::kDryRun)->config)
        .At(0);
  };
  const ActionCosts plain = costs({});
  EXPECT_DOUBLE_EQ(plain.forward, 1);
  EXPECT_GT(plain.backward_input, 1);
  EXPECT_LT(plain.backward_weight, 1);
  EXPECT_NEAR(plain.backward_input - plain.forward, plain.forward - plain.backward_weight, 1e-12);
  EXPECT_NEAR(costs({"recompute.recompute_granularity=full"}).backward_input,
              plain.backward_input + 1, 1e-12);
  EXPECT_GT(costs({"recompute.recompute_granularity=selective"}).backward_input,
            plain.backward_input);
}

constexpr char kT5[] =
    "model { model_type: t5 encoder_num_layers: 6 decoder_num_layers: 3 hidden_size: 64\n"
    "  num_attention_heads: 4 encoder_seq_length: 64 decoder_seq_length: 16 }\n"
    "parallel { pipeline_model_parallel_size: 3 }\n"
    "optimizer { lr: 1e-3 }\n"
    "train { micro_batch_size: 1 global_batch_size: 3 train_iters: 10 }\n"
    "data { mock_data: true }\n";

config::PretrainConfig T5(const std::vector<std::string>& overrides) {
  const auto loaded = LoadConfigFromString(kT5, "t5", overrides, ConfigPurpose::kDryRun);
  EXPECT_THAT(loaded, absl_testing::IsOk());
  return loaded->config;
}

TEST(PipelineConfigTest, AnEncodersLayersComeBeforeTheDecoders) {
  EXPECT_THAT(ToPlacement(T5({})).layers, IsEmpty());  // three each
  EXPECT_THAT(ToPlacement(T5({"parallel.pipeline_model_parallel_split_rank=2"})).layers,
              ElementsAre(3, 3, 3));
  EXPECT_THAT(ToPlacement(T5({"parallel.pipeline_model_parallel_split_rank=1",
                              "model.decoder_num_layers=4"}))
                  .layers,
              ElementsAre(6, 2, 2));
  EXPECT_THAT(ToPlacement(T5({"parallel.pipeline_model_parallel_layout=\"Et*5|ttt|tL\""})).layers,
              ElementsAre(5, 3, 1));
}

// A decoder's layer over a quarter of the tokens costs less than an encoder's.
TEST(PipelineConfigTest, TheCostOfAT5PartFollowsItsLayers) {
  const PartCosts costs =
      ToActionCosts(T5({"parallel.pipeline_model_parallel_layout=\"Et*6|tt|tL\""}));
  EXPECT_DOUBLE_EQ(costs.At(1).forward, 2 * costs.At(2).forward);
  EXPECT_GT(costs.At(0).forward, 6 * costs.At(2).forward);
  EXPECT_LT(costs.At(0).backward_weight, costs.At(0).forward);
  const PartCosts mixed =
      ToActionCosts(T5({"parallel.pipeline_model_parallel_layout=\"Et*5|tt|ttL\""}));
  EXPECT_NEAR(mixed.At(1).forward, costs.At(0).forward / 6 + costs.At(2).forward, 1e-6);
}

}  // namespace
}  // namespace megatron
