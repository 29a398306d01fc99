#include "megatron/train/recipes/model_rules_of.h"

#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gtest/gtest.h"
#include "megatron/train/configs/config_loader.h"

namespace megatron {
namespace {

config::ModelConfig Model(const std::string& name, const std::vector<std::string>& overrides = {}) {
  const auto loaded = LoadConfig(name, overrides, ConfigPurpose::kDryRun);
  EXPECT_THAT(loaded, absl_testing::IsOk());
  return loaded->config.model();
}

double Sum(const std::vector<MatrixProducts>& layers) {
  double sum = 0;
  for (const MatrixProducts& layer : layers) sum += MultiplyAdds(layer);
  return sum;
}

TEST(ModelRulesTest, EveryModelTypeHasRulesOfItsOwnKind) {
  EXPECT_EQ(ModelRulesOf(Model("gpt_demo")).kind(), ModelKind::kGpt);
  EXPECT_EQ(ModelRulesOf(Model("bert_demo")).kind(), ModelKind::kBert);
  EXPECT_EQ(ModelRulesOf(Model("t5_demo")).kind(), ModelKind::kT5);
}

TEST(ModelRulesTest, OnlyT5HasAnEncoderInFront) {
  config::ModelConfig model;
  model.set_seq_length(48);
  model.set_decoder_seq_length(16);
  for (const config::ModelType::Type type : {config::ModelType::gpt, config::ModelType::bert}) {
    model.set_model_type(type);
    const SampleLengths lengths = ModelRulesOf(model).LengthsOf(model);
    EXPECT_EQ(lengths.seq_length, 48);
    EXPECT_EQ(lengths.encoder_seq_length, 0);
  }
  model.set_model_type(config::ModelType::t5);
  const SampleLengths lengths = ModelRulesOf(model).LengthsOf(model);
  EXPECT_EQ(lengths.seq_length, 16);
  EXPECT_EQ(lengths.encoder_seq_length, 48);
}

TEST(ModelRulesTest, T5HasTwoStacksAndTheOthersHaveOne) {
  const config::ModelConfig t5 =
      Model("t5_demo", {"model.encoder_num_layers=3", "model.decoder_num_layers=2"});
  const std::vector<StackLayers> stacks = ModelRulesOf(t5).StacksOf(t5);
  ASSERT_EQ(stacks.size(), 2u);
  EXPECT_STREQ(stacks[0].field, "model.encoder_num_layers");
  EXPECT_EQ(stacks[0].num_layers, 3);
  EXPECT_STREQ(stacks[1].field, "model.decoder_num_layers");
  EXPECT_EQ(stacks[1].num_layers, 2);
  EXPECT_EQ(TotalLayers(t5), 5);
  for (const char* name : {"gpt_demo", "bert_demo"}) {
    const config::ModelConfig model = Model(name);
    EXPECT_EQ(ModelRulesOf(model).StacksOf(model).size(), 1u);
    EXPECT_EQ(TotalLayers(model), model.num_layers());
  }
}

TEST(ModelRulesTest, EachLayerOfEachStackHasProducts) {
  for (const char* name : {"gpt_demo", "bert_demo", "t5_demo", "moe_tiny", "hybrid_tiny"}) {
    const config::ModelConfig model = Model(name);
    EXPECT_EQ(
        static_cast<int64_t>(
            ModelRulesOf(model).ProductsOfLayers(model, FlopsConvention::kCausalHalved).size()),
        TotalLayers(model));
  }
}

TEST(ModelRulesTest, OnlyAModelWithADecoderHasACausalMask) {
  for (const char* name : {"gpt_demo", "bert_demo", "t5_demo"}) {
    const config::ModelConfig model = Model(name);
    const ModelRules& rules = ModelRulesOf(model);
    const double classic = Sum(rules.ProductsOfLayers(model, FlopsConvention::kClassic)),
                 halved = Sum(rules.ProductsOfLayers(model, FlopsConvention::kCausalHalved));
    if (rules.kind() == ModelKind::kBert) {
      EXPECT_EQ(halved, classic);
    } else {
      EXPECT_LT(halved, classic);
    }
  }
}

TEST(ModelRulesTest, BertsHeadHasALayerOfItsOwn) {
  const config::ModelConfig bert = Model("bert_demo"), gpt = Model("gpt_demo");
  const auto per_token = [](const config::ModelConfig& model) {
    return MultiplyAdds(ModelRulesOf(model).ProductsOfHead(model, 1000)) /
           static_cast<double>(model.seq_length());
  };
  EXPECT_EQ(per_token(gpt), gpt.hidden_size() * 1000);
  EXPECT_EQ(per_token(bert), bert.hidden_size() * (1000 + bert.hidden_size()));
}

}  // namespace
}  // namespace megatron
