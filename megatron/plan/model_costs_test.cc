#include "megatron/plan/model_costs.h"

#include "gtest/gtest.h"

namespace megatron {
namespace {

LayerShape Layer() {
  LayerShape layer;
  layer.hidden = 64;
  layer.query_width = 64;
  layer.key_value_width = 16;
  layer.ffn = 256;
  return layer;
}

// Multiplications and additions of pairs in a product written as three loops.
double LoopCount(const MatrixProduct& product) {
  double count = 0;
  for (int of = 0; of < product.count; ++of)
    for (int i = 0; i < product.m; ++i)
      for (int j = 0; j < product.n; ++j) count += product.k;
  return count;
}

TEST(ModelCostsTest, CountsWhatThreeLoopsDo) {
  for (const MatrixProduct& product :
       Joined(SelfAttentionProducts(Layer(), 5, 3), MlpProducts(Layer(), 5)))
    EXPECT_EQ(MultiplyAdds(product), LoopCount(product)) << product.name;
}

TEST(ModelCostsTest, AttentionHasProductsWithAndWithoutWeights) {
  const MatrixProducts products = SelfAttentionProducts(Layer(), 10, 5);
  EXPECT_EQ(WeightMultiplyAdds(products), 10 * 64 * (64 + 2 * 16 + 64));
  EXPECT_EQ(ActivationMultiplyAdds(products), 2 * 10 * 5 * 64);
  EXPECT_EQ(MultiplyAdds(products), 10 * 64 * 160 + 6400);
}

TEST(ModelCostsTest, CrossAttentionsKeysAndValuesAreOfWhatIsRead) {
  const MatrixProducts products = CrossAttentionProducts(Layer(), 10, 30);
  EXPECT_EQ(WeightMultiplyAdds(products), 64 * (10 * 64 + 30 * 2 * 16 + 10 * 64));
  EXPECT_EQ(ActivationMultiplyAdds(products), 2 * 10 * 30 * 64);
}

TEST(ModelCostsTest, AGateDoublesTheFirstProductOfAnMlp) {
  LayerShape layer = Layer();
  EXPECT_EQ(MultiplyAdds(MlpProducts(layer, 1)), 2 * 64 * 256);
  layer.is_gated = true;
  EXPECT_EQ(MultiplyAdds(MlpProducts(layer, 1)), 3 * 64 * 256);
}

TEST(ModelCostsTest, AMixtureCountsTheExpertsOfAToken) {
  LayerShape layer = Layer();
  layer.num_experts = 8;
  layer.experts_per_token = 2;
  layer.expert_ffn = 32;
  EXPECT_EQ(MultiplyAdds(MixtureProducts(layer, 3)), 3 * (2 * 2 * 64 * 32 + 8 * 64));
  layer.shared_expert_ffn = 48;
  EXPECT_EQ(MultiplyAdds(MixtureProducts(layer, 3)), 3 * (2 * 2 * 64 * 32 + 8 * 64 + 2 * 64 * 48));
}

TEST(ModelCostsTest, EveryExpertHasWeightsAndNoTokenAddsAny) {
  LayerShape layer = Layer();
  layer.num_experts = 8;
  layer.experts_per_token = 2;
  layer.expert_ffn = 32;
  layer.shared_expert_ffn = 48;
  EXPECT_EQ(CountWeights(MixtureProducts(layer, 3)), 8 * 2 * 64 * 32 + 8 * 64 + 2 * 64 * 48);
  EXPECT_EQ(CountWeights(SelfAttentionProducts(layer, 10, 5)), 64 * (64 + 2 * 16 + 64));
  EXPECT_EQ(CountWeights(HeadProducts(layer, 10, 1000)), 64 * 1000);
}

TEST(ModelCostsTest, TheInputOfAnMlpIsTheFirstProductOfEachMlpAndExpert) {
  LayerShape layer = Layer();
  EXPECT_EQ(MlpInputMultiplyAdds(SelfAttentionProducts(layer, 3, 3)), 0);
  EXPECT_EQ(AttentionWeightMultiplyAdds(SelfAttentionProducts(layer, 3, 3)),
            WeightMultiplyAdds(SelfAttentionProducts(layer, 3, 3)));
  EXPECT_EQ(AttentionWeightMultiplyAdds(MlpProducts(layer, 3)), 0);
  EXPECT_EQ(MlpInputMultiplyAdds(MlpProducts(layer, 3)), 3 * 64 * 256);
  layer.num_experts = 8;
  layer.experts_per_token = 2;
  layer.expert_ffn = 32;
  layer.shared_expert_ffn = 48;
  EXPECT_EQ(MlpInputMultiplyAdds(MixtureProducts(layer, 3)), 3 * (2 * 64 * 32 + 64 * 48));
}

TEST(ModelCostsTest, ACausalMaskShowsHalfOfTheTokensUnlessItIsIgnored) {
  EXPECT_EQ(CausallySeen(10, FlopsConvention::kCausalHalved), 5);
  EXPECT_EQ(CausallySeen(10, FlopsConvention::kClassic), 10);
  EXPECT_EQ(SeenInWindow(16, 4, FlopsConvention::kCausalHalved), 3.5);
  EXPECT_EQ(SeenInWindow(16, 4, FlopsConvention::kClassic), 7);
  EXPECT_EQ(SeenInWindow(16, 16, FlopsConvention::kCausalHalved), 8);
  EXPECT_EQ(SeenInWindow(16, 100, FlopsConvention::kClassic), 16);
}

}  // namespace
}  // namespace megatron
