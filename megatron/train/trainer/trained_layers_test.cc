#include "megatron/train/trainer/trained_layers.h"

#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gtest/gtest.h"
#include "megatron/train/configs/config_loader.h"
#include "megatron/train/trainer/flops.h"
#include "megatron/train/trainer/run_options.h"

namespace megatron {
namespace {

constexpr int64_t kVocab = 384;

// A model as it is configured, and what of it is trained.
struct Trained {
  config::ModelConfig model;
  TrainedLayers layers;

  double Flops() const {
    return FlopsPerToken(model, kVocab, FlopsConvention::kCausalHalved, layers);
  }
  double AllFlops() const { return FlopsPerToken(model, kVocab, FlopsConvention::kCausalHalved); }
};

Trained Find(const std::string& name, const std::vector<std::string>& overrides) {
  const auto loaded = LoadConfig(name, overrides, ConfigPurpose::kDryRun);
  EXPECT_THAT(loaded, absl_testing::IsOk());
  const TrainerOptions trainer = ToRunOptions(loaded->config, kVocab).trainer;
  const auto layers = FindTrainedLayers(trainer.model, trainer.freeze);
  EXPECT_THAT(layers, absl_testing::IsOk());
  return {loaded->config.model(), *layers};
}

// The head of llama_tiny, and the weights of one of its four layers.
constexpr double kHead = 384.0 * 128;
double LayerWeights(const config::ModelConfig& model) {
  return 128.0 * 128 * 2 + 128.0 * 64 * 2 + 128.0 * double(model.ffn_hidden_size()) * 3;
}

TEST(TrainedLayersTest, NothingIsFoundWhereNothingIsFrozen) {
  const Trained all = Find("llama_tiny", {});
  EXPECT_TRUE(all.layers.layers.empty());
  EXPECT_EQ(all.Flops(), all.AllFlops());
}

// A third of a layer's products is left: those of forward.
TEST(TrainedLayersTest, FirstLayersAreOnlyRunForward) {
  const Trained half =
      Find("llama_tiny", {R"(optimizer.freeze=["^embedding", "layers\\.[01]\\."])"});
  ASSERT_EQ(half.layers.layers.size(), 4u);
  EXPECT_FALSE(half.layers.layers[0].has_backward);
  EXPECT_FALSE(half.layers.layers[1].has_backward);
  EXPECT_TRUE(half.layers.layers[2].has_backward);
  const double layer = (half.AllFlops() - 6 * kHead) / 4;
  EXPECT_DOUBLE_EQ(half.Flops(), half.AllFlops() - 2 * layer * 2 / 3);
}

TEST(TrainedLayersTest, GradientsFlowThroughFrozenLayersBehindATrainedOne) {
  const Trained trained = Find("llama_tiny", {R"(optimizer.freeze=["layers\\.[02]\\."])"});
  for (const TrainedLayer& layer : trained.layers.layers) EXPECT_TRUE(layer.has_backward);
  EXPECT_EQ(trained.layers.layers[0].weights, 0);
  EXPECT_EQ(trained.layers.layers[1].weights, 1);
  EXPECT_DOUBLE_EQ(trained.Flops(), trained.AllFlops() - 2 * 2 * LayerWeights(trained.model));
}

TEST(TrainedLayersTest, AWeightGradientIsAThirdOfItsProducts) {
  const Trained trained =
      Find("llama_tiny", {R"(optimizer.freeze=["linear_fc2", "^output_layer"])"});
  const double fc2 = 128.0 * double(trained.model.ffn_hidden_size());
  EXPECT_DOUBLE_EQ(trained.Flops(), trained.AllFlops() - 2 * (4 * fc2 + kHead));
}

TEST(TrainedLayersTest, AdaptersAreComputedBesideWeightsWithoutGradients) {
  const Trained trained = Find("llama_tiny", {"model.lora={dim: 8 alpha: 16}"});
  const double ffn = double(trained.model.ffn_hidden_size());
  const double adapters = 8 * ((128 + 256) + (128 + 128) + (128 + 2 * ffn) + (ffn + 128));
  for (const TrainedLayer& layer : trained.layers.layers) {
    EXPECT_TRUE(layer.has_backward);
    EXPECT_EQ(layer.weights, 0);
    EXPECT_EQ(layer.adapters, adapters);
    EXPECT_EQ(layer.trained_adapters, adapters);
  }
  EXPECT_DOUBLE_EQ(trained.Flops(), trained.AllFlops() - 2 * (4 * LayerWeights(trained.model)) -
                                        2 * kHead + 6 * 4 * adapters);
}

// A token goes to some of the experts, whose products count.
TEST(TrainedLayersTest, FrozenExpertsHaveNoGradientsOfWeights) {
  const Trained trained = Find("moe_tiny", {R"(optimizer.freeze=["\\.experts\\."])"});
  const config::ModelConfig& model = trained.model;
  double experts = 0;
  for (const TrainedLayer& layer : trained.layers.layers) {
    if (layer.weights == 1) continue;
    experts += double(model.moe_router_topk()) * 3 * double(model.hidden_size()) *
               double(model.moe_ffn_hidden_size());
  }
  EXPECT_GT(experts, 0);
  EXPECT_NEAR(trained.Flops(), trained.AllFlops() - 2 * experts, 1e-9 * trained.AllFlops());
}

TEST(TrainedLayersTest, DecodersHaveBackwardBehindATrainedEncoder) {
  const Trained trained =
      Find("t5_demo", {R"(optimizer.freeze=["^embedding", "relative_pos", "^encoder\\.layers",)"
                       R"( "^decoder\\.layers\\.0\\."])"});
  const int64_t encoders = trained.model.encoder_num_layers();
  EXPECT_FALSE(trained.layers.layers[encoders - 1].has_backward);
  EXPECT_TRUE(trained.layers.layers[encoders].has_backward);  // the encoder's norm is trained
  EXPECT_EQ(trained.layers.layers[encoders].weights, 0);
}

}  // namespace
}  // namespace megatron
