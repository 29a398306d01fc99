#include "megatron/train/trainer/pipeline_section.h"

#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/train/configs/config_loader.h"

namespace megatron {
namespace {

using ::testing::ElementsAre;
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

TEST(PipelineSectionTest, SharesLayersOutEvenly) {
  EXPECT_EQ(PlacementWith({}).chunks, 1);
  EXPECT_EQ(PlacementWith({"num_layers_per_virtual_pipeline_stage=2"}).chunks, 2);
  EXPECT_EQ(PlacementWith({"num_virtual_stages_per_pipeline_rank=4"}).chunks, 4);
  EXPECT_THAT(PlacementWith({"num_virtual_stages_per_pipeline_rank=4"}).layers, IsEmpty());
}

TEST(PipelineSectionTest, EmbeddingAndLossCountAsLayersIfAskedTo) {
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

TEST(PipelineSectionTest, ALayoutSaysWhereLayersGo) {
  const StagePlacement two = PlacementWith({"pipeline_model_parallel_layout=Et*5|tttL"});
  EXPECT_EQ(two.chunks, 1);
  EXPECT_THAT(two.layers, ElementsAre(5, 3));
  const StagePlacement four = PlacementWith({"pipeline_model_parallel_layout=E|t*5|ttt|L"});
  EXPECT_EQ(four.chunks, 2);
  EXPECT_THAT(four.layers, ElementsAre(0, 5, 3, 0));
}

TEST(PipelineSectionTest, MultiTokenPredictionHasAPartAndACopyOfTheWords) {
  const auto placement = [](int stages, const std::string& layout, const std::string& schedule) {
    return PlacementWith({"pipeline_model_parallel_size=" + std::to_string(stages),
                          "pipeline_model_parallel_layout=" + layout,
                          "pipeline_schedule=" + schedule, "model.mtp_num_layers=2",
                          "model.position_embedding_type=rope"});
  };
  const auto words = [](const StagePlacement& of, bool is_output_matrix) {
    return of.StagesWithWords(is_output_matrix, /*has_mtp=*/true);
  };
  const StagePlacement in_last = placement(4, "Ett|tt|tt|ttm*2L", "1f1b");
  EXPECT_FALSE(in_last.mtp_before_last);
  EXPECT_EQ(in_last.mtp_stage(), 3);
  EXPECT_THAT(words(in_last, false), ElementsAre(0, 3));
  const StagePlacement alone = placement(4, "Et*4|t*4|mm|L", "zb_h1");
  EXPECT_TRUE(alone.mtp_before_last);
  EXPECT_THAT(alone.layers, ElementsAre(4, 4, 0, 0));
  EXPECT_EQ(alone.mtp_stage(), 2);
  EXPECT_THAT(words(alone, false), ElementsAre(0, 2));
  EXPECT_THAT(words(alone, true), ElementsAre(0, 2, 3));
  const StagePlacement turned = placement(2, "Ett|tttt|ttmm|L", "zb_v");
  EXPECT_EQ(turned.mtp_stage(), 1);
  EXPECT_EQ(turned.last_stage(), 0);
  EXPECT_THAT(words(turned, true), ElementsAre(0, 1));
  const StagePlacement interleaved = placement(2, "Ett|tttt|ttmm|L", "interleaved");
  EXPECT_EQ(interleaved.mtp_stage(), 0);
  EXPECT_THAT(words(interleaved, false), ElementsAre(0));
  EXPECT_THAT(words(interleaved, true), ElementsAre(0, 1));
}

TEST(PipelineSectionTest, MultiTokenPredictionBeforeTheLastPartCostsItsLayers) {
  const auto loaded =
      Load({"pipeline_model_parallel_size=4", "pipeline_model_parallel_layout=Et*4|t*4|mm|L",
            "model.mtp_num_layers=2", "model.position_embedding_type=rope"});
  ASSERT_THAT(loaded, absl_testing::IsOk());
  const PartCosts costs = ToActionCosts(loaded->config);
  EXPECT_DOUBLE_EQ(costs.At(2).forward, costs.At(0).forward / 2);
  EXPECT_DOUBLE_EQ(costs.At(3).forward, costs.At(0).forward / 8);
}

TEST(PipelineSectionTest, ZbVHasTwoPartsOnEachRankAndBothEndsOnTheFirst) {
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

TEST(PipelineSectionTest, SchedulesHaveTheNamesThatUsersKnow) {
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

TEST(PipelineSectionTest, RecomputationMakesTheInputsPartLonger) {
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
  // An MLP in chunks computes its first product again, and the gradients of its weights at once.
  for (const std::string gate : {"false", "true"}) {
    const std::string swiglu = "model.swiglu=" + gate;
    const ActionCosts whole = costs({swiglu});
    const ActionCosts chunks = costs({swiglu, "recompute.mlp_chunk_tokens=16"});
    const ActionCosts again = costs(
        {swiglu, "recompute.recompute_granularity=selective", "recompute.recompute_modules=[mlp]"});
    const double first = again.backward_input - whole.backward_input;
    const double both = first * (gate == "true" ? 1.5 : 2);
    EXPECT_GT(first, 0);
    EXPECT_NEAR(chunks.backward_input, whole.backward_input + first + both, 1e-12);
    EXPECT_NEAR(chunks.backward_weight, whole.backward_weight - both, 1e-12);
    // Those of attention in chunks are computed at once, too, and nothing is left to put off.
    const ActionCosts nothing_later =
        costs({swiglu, "recompute.mlp_chunk_tokens=16", "recompute.attention_chunk_tokens=16"});
    EXPECT_NEAR(nothing_later.backward_weight, 0, 1e-12);
    EXPECT_NEAR(nothing_later.backward_input, chunks.backward_input + chunks.backward_weight,
                1e-12);
  }
}

// Returns the costs of the parts of kBase with these overrides, each of which is a field's path and
// value.
PartCosts CostsWith(const std::vector<std::string>& overrides) {
  const auto loaded = LoadConfigFromString(kBase, "base", overrides, ConfigPurpose::kDryRun);
  EXPECT_THAT(loaded, absl_testing::IsOk());
  return ToActionCosts(loaded->config);
}

TEST(PipelineSectionTest, CostsThatAreWrittenAreTheMeansOfAllParts) {
  const std::string zb_v = "parallel.pipeline_schedule=zb_v";
  const std::string layout = "parallel.pipeline_model_parallel_layout=Et|ttt|ttt|tL";
  const PartCosts plain = CostsWith({zb_v, layout});
  const PartCosts costs = CostsWith({zb_v, layout, "parallel.pipeline_pass_costs=[2, 4.2, 1.4]"});
  EXPECT_DOUBLE_EQ(costs.Mean().forward, 1);
  EXPECT_NEAR(costs.Mean().backward_input, 2.1, 1e-12);
  EXPECT_NEAR(costs.Mean().backward_weight, 0.7, 1e-12);
  EXPECT_NEAR(costs.At(1).backward_input / costs.At(0).backward_input,
              plain.At(1).backward_input / plain.At(0).backward_input, 1e-12);
}

TEST(PipelineSectionTest, TheCostOfAPartFollowsItsNumberOfLayers) {
  const PartCosts costs = CostsWith({"parallel.pipeline_model_parallel_layout=\"E|t*5|ttt|L\""});
  EXPECT_DOUBLE_EQ(costs.At(1).forward / costs.At(2).forward, 5.0 / 3);
  EXPECT_DOUBLE_EQ(costs.At(0).forward / costs.At(2).forward, 0.5 / 3);
  EXPECT_DOUBLE_EQ(costs.At(3).forward, costs.At(0).forward);
  EXPECT_DOUBLE_EQ(costs.Mean().forward, 1);
}

// The last four layers have experts. With a width of 64, a token's work in one of them is that of
// attention, 4 * 64 * 64 + 2 * 64 * 16, of the two experts of a token, each of which has two
// products of 64 * 512, and of the router, 64 * 8.
TEST(PipelineSectionTest, ALayerWithExpertsCostsTheExpertsOfAToken) {
  const PartCosts costs =
      CostsWith({"model.num_experts=8", "model.moe_router_topk=2", "model.moe_ffn_hidden_size=512",
                 "model.moe_layer_freq=\"[0]*4+[1]*4\"", "model.disable_bias_linear=true"});
  const double attention = 4 * 64 * 64 + 2 * 64 * 16, mlp = 2 * 64 * 256,
               experts = 2 * 2 * 64 * 512 + 64 * 8;
  EXPECT_DOUBLE_EQ(costs.At(1).forward / costs.At(0).forward,
                   (attention + experts) / (attention + mlp));
  EXPECT_DOUBLE_EQ(costs.At(1).backward_weight / costs.At(1).forward,
                   (4 * 64 * 64 + experts) / (attention + experts));
}

TEST(PipelineSectionTest, RecomputingTheMlpsRepeatsTheFirstProductOfExperts) {
  const std::vector<std::string> experts = {
      "model.num_experts=8", "model.moe_router_topk=2", "model.moe_ffn_hidden_size=512",
      "model.moe_shared_expert_intermediate_size=128", "model.disable_bias_linear=true"};
  std::vector<std::string> recomputing = experts;
  recomputing.insert(recomputing.end(), {"recompute.recompute_granularity=selective",
                                         "recompute.recompute_modules=[mlp]"});
  const double again =
      CostsWith(recomputing).At(0).backward_input - CostsWith(experts).At(0).backward_input;
  const double layer = 4 * 64 * 64 + 2 * 64 * 16 + 2 * 2 * 64 * 512 + 64 * 8 + 2 * 64 * 128;
  EXPECT_NEAR(again, (2 * 64 * 512 + 64 * 128) / layer, 1e-12);
}

// Attention costs 2 * 64 * 32 per token where each of 32 tokens sees all others, and half of that
// under a causal mask.
TEST(PipelineSectionTest, ABertsAttentionIsNotCausal) {
  const double weights = 4 * 64 * 64 + 2 * 64 * 256;
  const auto input_over_forward = [&](double attention) {
    return (weights + 2 * attention) / (weights + attention);
  };
  EXPECT_DOUBLE_EQ(CostsWith({}).At(0).backward_input, input_over_forward(64 * 32));
  EXPECT_DOUBLE_EQ(CostsWith({"model.model_type=bert"}).At(0).backward_input,
                   input_over_forward(2 * 64 * 32));
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

TEST(PipelineSectionTest, AnEncodersLayersComeBeforeTheDecoders) {
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
TEST(PipelineSectionTest, TheCostOfAT5PartFollowsItsLayers) {
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
