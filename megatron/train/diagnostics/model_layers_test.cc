#include "megatron/train/diagnostics/model_layers.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::testing::ElementsAre;

ModelOptions Options(const char* name, int64_t layers, int64_t encoder_layers) {
  ModelOptions options;
  options.transformer.name = name;
  options.transformer.num_layers = layers;
  options.num_encoder_layers = encoder_layers;
  return options;
}

TEST(ModelLayersTest, NamesTheLayersOfBothStacks) {
  EXPECT_THAT(ModelLayers(Options("decoder", 2, 0)).names(),
              ElementsAre("embedding", "decoder.layers.0", "decoder.layers.1", "other"));
  EXPECT_THAT(ModelLayers(Options("decoder", 1, 2)).names(),
              ElementsAre("embedding", "encoder.layers.0", "encoder.layers.1", "decoder.layers.0",
                          "other"));
}

TEST(ModelLayersTest, FindsTheLayerOfAParameter) {
  const ModelLayers layers(Options("decoder", 12, 0));
  EXPECT_EQ(layers.RowOf("embedding.word_embeddings.weight"), 0);
  EXPECT_EQ(layers.RowOf("decoder.layers.1.mlp.linear_fc1.weight"), 2);
  EXPECT_EQ(layers.RowOf("decoder.layers.11.mlp.router"), 12);
  EXPECT_EQ(layers.RowOf("decoder.layers.11"), ModelLayers::RowOfLayer(11));
  for (const char* other :
       {"decoder.final_layernorm.weight", "output_layer.weight", "lm_head.bias", "", "a.b"})
    EXPECT_EQ(layers.RowOf(other), 13) << other;
  EXPECT_EQ(ModelLayers(Options("decoder", 2, 3)).RowOf("decoder.layers.1.x"), 5);
}

}  // namespace
}  // namespace megatron
