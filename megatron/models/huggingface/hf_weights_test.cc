#include "megatron/models/huggingface/hf_weights.h"

#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/models/make_stage.h"
#include "megatron/models/model_harness.h"

namespace megatron {
namespace {

using ::testing::ElementsAre;

std::vector<ModelOptions> Models() {
  std::vector<ModelOptions> models = {SmallGpt2(),  SmallGpt2(), SmallLlama(),       SmallLlama(),
                                      SmallLlama(), SmallBert(), SmallPostNormBert()};
  models[1].tied_embeddings = false;
  models[3].tied_embeddings = true;
  models[3].transformer.qkv_bias = true;
  models[3].transformer.kv_channels = 6;
  models[3].transformer.rotary_options.interleaved = true;
  models[4].transformer.qkv_bias = models[4].transformer.linear_bias = true;
  models[4].transformer.num_query_groups = 1;
  return models;
}

TEST(HfWeightsTest, EachRowOfEachParameterIsInOneTensor) {
  for (const ModelOptions& options : Models()) {
    std::map<std::string, Shape> shapes;
    const auto stage = MakeStage(options, {{DeviceType::kMeta}});
    for (Parameter* parameter : stage->parameters()) {
      shapes.emplace(parameter->name, parameter->sharding.global_shape);
    }
    std::map<std::string, std::set<int64_t>> rows;
    for (const HfTensor& tensor : HfTensors(options)) {
      ASSERT_EQ(shapes.count(tensor.parameter), 1u) << tensor.parameter;
      EXPECT_EQ(shapes[tensor.parameter], tensor.parameter_shape);
      for (int64_t r = 0; r < tensor.rows; ++r) {
        EXPECT_TRUE(rows[tensor.parameter].insert(tensor.row(r)).second) << tensor.name << " " << r;
      }
      const int64_t all = tensor.parameter_shape.numel() / tensor.columns;
      EXPECT_EQ(tensor.parameter_shape.numel() % tensor.columns, 0);
      EXPECT_LT(*rows[tensor.parameter].rbegin(), all);
    }
    ASSERT_EQ(rows.size(), shapes.size());
    for (const auto& [name, shape] : shapes) {
      const bool vocabulary =
          name == "embedding.word_embeddings.weight" || absl::StartsWith(name, "output_layer.");
      const int64_t columns =
          name.find("bias") != std::string::npos || name.find("norm") != std::string::npos
              ? 1
              : shape[-1];
      EXPECT_EQ(static_cast<int64_t>(rows[name].size()),
                vocabulary ? options.vocab_size : shape.numel() / columns)
          << name;
    }
  }
}

TEST(HfWeightsTest, CopyingThereAndBackIsTheIdentity) {
  for (const ModelOptions& options : Models()) {
    for (int64_t size : {1, 2, 4, 8}) {
      for (const HfTensor& tensor : HfTensors(options)) {
        std::vector<char> theirs(static_cast<size_t>(tensor.rows * tensor.columns * size));
        for (size_t i = 0; i < theirs.size(); ++i) theirs[i] = static_cast<char>(i * 31 + i / 256);
        std::vector<char> ours(static_cast<size_t>(tensor.parameter_shape.numel() * size));
        std::vector<char> back(theirs.size());
        CopyFromHf(tensor, size, theirs.data(), ours.data());
        CopyToHf(tensor, size, ours.data(), back.data());
        EXPECT_EQ(back, theirs) << tensor.name;
      }
    }
  }
}

TEST(HfWeightsTest, ABertWithoutTokenTypesHasZerosForThem) {
  ModelOptions options = SmallBert();
  options.num_token_types = 0;
  std::vector<std::string> without;
  for (const HfTensor& tensor : HfTensors(options)) {
    if (!tensor.parameter.empty()) continue;
    without.push_back(tensor.name);
    EXPECT_THAT(tensor.shape, ElementsAre(2, options.transformer.hidden_size));
  }
  EXPECT_THAT(without, ElementsAre("bert.embeddings.token_type_embeddings.weight"));
}

// The rows of the first tensor of that name.
std::vector<int64_t> RowsOf(const ModelOptions& options, const std::string& name) {
  std::vector<int64_t> rows;
  for (const HfTensor& tensor : HfTensors(options)) {
    if (tensor.name != name) continue;
    for (int64_t r = 0; r < tensor.rows; ++r) rows.push_back(tensor.row(r));
  }
  return rows;
}

TEST(HfWeightsTest, QueriesKeysAndValuesAreTakenOutOfTheirGroups) {
  ModelOptions options = SmallLlama();
  options.transformer.num_attention_heads = 4;
  options.transformer.num_query_groups = 2;
  options.transformer.kv_channels = 2;
  const std::string prefix = "model.layers.0.self_attn.";
  EXPECT_THAT(RowsOf(options, prefix + "q_proj.weight"), ElementsAre(0, 1, 2, 3, 8, 9, 10, 11));
  EXPECT_THAT(RowsOf(options, prefix + "k_proj.weight"), ElementsAre(4, 5, 12, 13));
  EXPECT_THAT(RowsOf(options, prefix + "v_proj.weight"), ElementsAre(6, 7, 14, 15));
  options.transformer.kv_channels = 4;
  options.transformer.rotary_options.interleaved = true;
  EXPECT_THAT(RowsOf(options, prefix + "k_proj.weight"), ElementsAre(8, 10, 9, 11, 24, 26, 25, 27));
  EXPECT_THAT(RowsOf(options, prefix + "v_proj.weight"),
              ElementsAre(12, 13, 14, 15, 28, 29, 30, 31));
}

TEST(HfWeightsTest, Conv1dIsTransposed) {
  ModelOptions options = SmallGpt2();
  for (const HfTensor& tensor : HfTensors(options)) {
    if (tensor.name != "transformer.h.1.mlp.c_fc.weight") continue;
    EXPECT_THAT(tensor.shape, ElementsAre(32, 48));
    std::vector<uint16_t> ours(48 * 32), theirs(48 * 32);
    for (size_t i = 0; i < ours.size(); ++i) ours[i] = static_cast<uint16_t>(i);
    CopyToHf(tensor, 2, reinterpret_cast<const char*>(ours.data()),
             reinterpret_cast<char*>(theirs.data()));
    EXPECT_EQ(theirs[5 * 48 + 7], ours[7 * 32 + 5]);
    return;
  }
  FAIL() << "there is no c_fc";
}

TEST(HfWeightsTest, KnowsNamesOfOtherVersions) {
  EXPECT_EQ(HfNameWithoutHead(HfTensors(SmallGpt2())[0]), "wte.weight");
  EXPECT_EQ(HfNameWithoutHead(HfTensors(SmallLlama())[0]), "");
  EXPECT_TRUE(IsHfBuffer("h.3.attn.bias"));
  EXPECT_TRUE(IsHfBuffer("model.layers.0.self_attn.rotary_emb.inv_freq"));
  EXPECT_FALSE(IsHfBuffer("h.3.attn.c_attn.bias"));
  EXPECT_TRUE(IsHfBuffer("bert.embeddings.position_ids"));
  EXPECT_EQ(HfCopiedParameter("lm_head.weight"), "embedding.word_embeddings.weight");
  EXPECT_EQ(HfCopiedParameter("cls.predictions.decoder.bias"), "output_layer.bias");
  EXPECT_EQ(HfCopiedParameter("cls.predictions.bias"), "");
}

}  // namespace
}  // namespace megatron
