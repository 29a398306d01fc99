#include "tools/torch_checkpoint/torch_import.h"

#include <map>
#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/models/make_stage.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::HasSubstr;

// Shapes, and what was read.
class FakeWeights : public TorchWeights {
 public:
  std::vector<std::string> Names() const override {
    std::vector<std::string> names;
    for (const auto& [name, shape] : shapes) names.push_back(name);
    return names;
  }
  const std::vector<int64_t>* ShapeOf(absl::string_view name) const override {
    const auto found = shapes.find(std::string(name));
    return found == shapes.end() ? nullptr : &found->second;
  }
  absl::Status Read(absl::string_view name, int64_t index, const Tensor&) const override {
    read = absl::StrCat(name, " ", index);
    return absl::OkStatus();
  }

  std::map<std::string, std::vector<int64_t>> shapes;
  mutable std::string read;
};

ModelOptions Llama() {
  ModelOptions options;
  TransformerOptions& layer = options.transformer;
  layer.num_layers = 3;
  layer.hidden_size = 32;
  layer.ffn_hidden_size = 24;
  layer.num_attention_heads = 4;
  layer.num_query_groups = 2;
  layer.kv_channels = 8;
  layer.norm.kind = ops::Norm::kRmsNorm;
  layer.gated = layer.rotary = true;
  layer.linear_bias = layer.qkv_bias = false;
  layer.dtype = DType::kBFloat16;
  options.vocab_size = 50;
  options.padded_vocab_size = 64;
  options.max_positions = 16;
  options.learned_positions = false;
  return options;
}

// The tensors of Megatron's checkpoint: those of all layers are one.
FakeWeights AllLayersTogether() {
  FakeWeights weights;
  weights.shapes = {
      {"embedding.word_embeddings.weight", {64, 32}},
      {"decoder.layers.self_attention.linear_qkv.layer_norm_weight", {3, 32}},
      {"decoder.layers.self_attention.linear_qkv.weight", {3, 64, 32}},
      {"decoder.layers.self_attention.linear_proj.weight", {3, 32, 32}},
      {"decoder.layers.mlp.linear_fc1.layer_norm_weight", {3, 32}},
      {"decoder.layers.mlp.linear_fc1.weight", {3, 48, 32}},
      {"decoder.layers.mlp.linear_fc2.weight", {3, 32, 24}},
      {"decoder.final_layernorm.weight", {32}},
      {"optimizer.state.exp_avg.decoder.layers.mlp.linear_fc2.weight", {3, 32, 24}},
      {"optimizer.state.fp32_param.decoder.layers.mlp.linear_fc2.weight", {3, 32, 24}},
  };
  return weights;
}

std::string ReadOf(const FakeWeights& weights, const std::vector<ShardedTensor>& blocks,
                   const std::string& name) {
  for (const ShardedTensor& block : blocks) {
    if (block.name != name) continue;
    EXPECT_THAT(block.source(Tensor()), IsOk());
    return weights.read;
  }
  return "";
}

TEST(TorchImportTest, FindsTheLayersInTensorsOfAll) {
  const FakeWeights weights = AllLayersTogether();
  const auto import = TorchImport::Match(weights, Llama());
  ASSERT_THAT(import, IsOk());
  const std::vector<ShardedTensor> blocks = import->Blocks();
  EXPECT_EQ(blocks.size(), 2u * (2 + 3 * 6));  // and a master of each
  EXPECT_EQ(ReadOf(weights, blocks, "decoder.layers.2.mlp.linear_fc1.weight"),
            "decoder.layers.mlp.linear_fc1.weight 2");
  EXPECT_EQ(ReadOf(weights, blocks, "decoder.final_layernorm.weight"),
            "decoder.final_layernorm.weight -1");
  // Masters are their own where they are there.
  EXPECT_EQ(
      ReadOf(weights, blocks, "optimizer.state.fp32_param.decoder.layers.1.mlp.linear_fc2.weight"),
      "optimizer.state.fp32_param.decoder.layers.mlp.linear_fc2.weight 1");
  EXPECT_EQ(
      ReadOf(weights, blocks, "optimizer.state.fp32_param.decoder.layers.1.mlp.linear_fc1.weight"),
      "decoder.layers.mlp.linear_fc1.weight 1");
}

TEST(TorchImportTest, FindsLayersUnderTheirOwnNamesToo) {
  const auto stage = MakeStage(Llama(), {{DeviceType::kMeta}});
  FakeWeights weights;
  for (const Parameter* parameter : stage->parameters())
    weights.shapes[parameter->name] = parameter->sharding.global_shape.dims();
  EXPECT_THAT(TorchImport::Match(weights, Llama()), IsOk());
  weights.shapes["embedding.word_embeddings.weight"] = {50, 32};  // without padding
  EXPECT_THAT(TorchImport::Match(weights, Llama()), IsOk());
  weights.shapes["embedding.word_embeddings.weight"] = {49, 32};
  EXPECT_THAT(TorchImport::Match(weights, Llama()).status(),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("word_embeddings")));
}

TEST(TorchImportTest, RefusesACheckpointOfAnotherModel) {
  const auto expect = [](const FakeWeights& weights, const char* message) {
    EXPECT_THAT(TorchImport::Match(weights, Llama()).status(),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr(message)));
  };
  FakeWeights weights = AllLayersTogether();
  weights.shapes["decoder.layers.self_attention.q_layernorm.weight"] = {3, 8};
  expect(weights, "'decoder.layers.self_attention.q_layernorm.weight' has no place");
  weights = AllLayersTogether();
  weights.shapes.erase("decoder.layers.mlp.linear_fc2.weight");
  expect(weights, "'decoder.layers.2.mlp.linear_fc2.weight' is missing");
  weights = AllLayersTogether();
  weights.shapes["decoder.layers.mlp.linear_fc1.weight"] = {3, 32, 48};  // as many, in other rows
  expect(weights, "'decoder.layers.mlp.linear_fc1.weight' is [3, 32, 48]");
  weights = AllLayersTogether();
  weights.shapes["decoder.layers.mlp.linear_fc2.weight"] = {2, 32, 24};
  expect(weights, "'decoder.layers.2.mlp.linear_fc2.weight' is missing");
}

}  // namespace
}  // namespace megatron
