#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/train/validate/validation_errors.h"

namespace megatron {
namespace {

constexpr char kLayers[] = "model.num_layers=";
constexpr char kMamba[] = "model.hybrid_layer_pattern=M*-M";
constexpr char kGroups[] = "model.mamba_num_groups=2";
constexpr char kAllGroups[] = "model.mamba_norm_all_groups=true";
constexpr char kDelta[] = "model.hybrid_layer_pattern=G*-G";
constexpr char kPlain[] = "model.hybrid_layer_pattern=*-*-";

TEST(ValidateHybridTest, RefusesPatternsThatFitNoModel) {
  ExpectOnlyError({
      {{"model.hybrid_layer_pattern=*D"}, "expects the letters M, G, *, - and E"},
      {{"model.hybrid_layer_pattern=*-|*-"}, "pipeline_model_parallel_layout"},
      {{kLayers, "model.hybrid_layer_pattern=MX"}, "expects the letters M, G, *, - and E"},
      {{kLayers, "model.hybrid_layer_pattern=M-G|*-"}, "pipeline_model_parallel_layout"},
      {{"model.num_layers=3", kPlain}, "has 4 layers, not model.num_layers = 3"},
      {{kLayers, "model.hybrid_layer_pattern=*E"}, "set model.num_experts"},
      {{kLayers, kPlain, "model.num_experts=4"}, "has no layer E of experts"},
      {{kLayers, "model.hybrid_layer_pattern=*E", "model.num_experts=4", "model.moe_layer_freq=2"},
       "is not what"},
      {{"model.mamba_num_heads=4"}, "has no effect without model.hybrid_layer_pattern"},
      {{kLayers, kPlain, "model.mamba_state_dim=16"}, "without a layer M"},
      {{kLayers, kMamba, kGroups, "model.linear_key_head_dim=16"}, "without a layer G"},
      {{kLayers, "model.hybrid_layer_pattern=--", "model.qk_layernorm=true"}, "without a layer *"},
      {{kLayers, "model.hybrid_layer_pattern=**", "model.disable_bias_linear=true",
        "model.add_mlp_bias=true"},
       "without a layer -"},
      {{"model.model_type=bert", kPlain}, "has no effect with model.model_type = bert"},
  });
}

TEST(ValidateHybridTest, RefusesHeadsThatCannotBeShared) {
  ExpectOnlyError({
      {{kLayers, kMamba, "model.mamba_num_heads=12"},
       "must be divisible by model.mamba_num_groups = 8"},
      {{kLayers, kMamba, kGroups, "model.mamba_head_dim=96"},
       "must divide 2 times model.hidden_size"},
      {{kLayers, kMamba, "model.mamba_num_groups=1", "parallel.tensor_model_parallel_size=2"},
       "must be divisible by parallel.tensor_model_parallel_size = 2"},
      {{kLayers, kDelta, kAllGroups}, "without a layer M"},
      {{kLayers, kDelta, "model.linear_num_value_heads=8"},
       "must be divisible by model.linear_num_key_heads = 16"},
      {{kLayers, kDelta, "model.linear_num_key_heads=1", "parallel.tensor_model_parallel_size=2"},
       "must be divisible by parallel.tensor_model_parallel_size = 2"},
  });
}

TEST(ValidateHybridTest, RefusesWhatItsLayersCannotBeUsedWith) {
  ExpectOnlyError({
      {{kLayers, kPlain, "model.post_norm=true"}, "norms stand in front of its layers"},
      {{kLayers, kPlain, "model.disable_bias_linear=true", "model.sandwich_norm=true"},
       "norms stand in front of its layers alone"},
      {{kLayers, kPlain, "model.parallel_residual=true"}, "each of its layers has one branch"},
      {{kLayers, kPlain, "model.lora={dim: 4}"}, "not all of its layers have adapters"},
      {{kLayers, kPlain, "data.random_ltd={min_value: 8 require_steps: 10}"},
       "its layers need all tokens"},
      {{kLayers, kPlain, "optimizer.optimizer=muon", "optimizer.qk_clip=true"},
       "the scores of its layers are not measured"},
      {{kLayers, kMamba, kGroups, "parallel.context_parallel_size=4"},
       "must be divisible by parallel.tensor_model_parallel_size = 1 (default) times"},
      {{kLayers, kDelta, "parallel.context_parallel_size=4", "parallel.cp_comm_type=a2a_p2p",
        "parallel.hierarchical_context_parallel_sizes=[2, 2]"},
       "all context-parallel ranks exchange tokens for heads"},
  });
}

TEST(ValidateHybridTest, AcceptsLayersOfOneBranch) {
  for (const char* pattern : {kMamba, "model.hybrid_layer_pattern=MMGG"}) {
    EXPECT_THAT(ErrorsOf(kGoodConfig, {kLayers, pattern, kGroups}), testing::IsEmpty()) << pattern;
  }
  for (const char* ranks :
       {"parallel.tensor_model_parallel_size=1", "parallel.tensor_model_parallel_size=2",
        "parallel.context_parallel_size=2"}) {
    EXPECT_THAT(ErrorsOf(kGoodConfig, {kLayers, kMamba, kGroups, kAllGroups, ranks}),
                testing::IsEmpty())
        << ranks;
  }
  for (const char* pattern : {kDelta, kPlain})
    EXPECT_THAT(ErrorsOf(kGoodConfig, {kLayers, pattern}), testing::IsEmpty()) << pattern;
  EXPECT_THAT(ErrorsOf(kGoodConfig, {"model.num_layers=4", kPlain}), testing::IsEmpty());
  EXPECT_THAT(ErrorsOf(kGoodConfig, {kLayers, kPlain, "parallel.context_parallel_size=2"}),
              testing::IsEmpty());
  EXPECT_THAT(ErrorsOf(kGoodConfig, {kLayers, "model.hybrid_layer_pattern=ME*E", kGroups,
                                     "model.num_experts=4", "model.disable_bias_linear=true"}),
              testing::IsEmpty());
}

}  // namespace
}  // namespace megatron
