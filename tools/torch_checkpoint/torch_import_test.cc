#include "tools/torch_checkpoint/torch_import.h"

#include <iterator>
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

// Adds the states of Adam that a checkpoint in bf16 has, with this prefix.
void AddStates(const std::string& prefix, FakeWeights* weights) {
  const auto shapes = weights->shapes;
  for (const auto& [name, shape] : shapes) {
    if (name.rfind("optimizer.", 0) == 0) continue;
    for (const char* state : {"param", "exp_avg", "exp_avg_sq"})
      weights->shapes[absl::StrCat(prefix, "optimizer.state.", state, ".", name)] = shape;
  }
}

TEST(TorchImportTest, FindsTheStatesOfTheOptimizer) {
  for (const char* prefix : {"", "chained_0."}) {
    FakeWeights weights = AllLayersTogether();
    AddStates(prefix, &weights);
    if (*prefix != '\0')
      weights.shapes.erase("optimizer.state.exp_avg.decoder.layers.mlp.linear_fc2.weight");
    const auto import = TorchImport::Match(weights, Llama());
    ASSERT_THAT(import, IsOk());
    const auto blocks = import->BlocksWithStates();
    ASSERT_THAT(blocks, IsOk());
    EXPECT_EQ(blocks->size(), 4u * (2 + 3 * 6));
    EXPECT_EQ(
        ReadOf(weights, *blocks,
               "optimizer.state.exp_avg_sq.decoder.layers.1.mlp.linear_fc1.weight"),
        absl::StrCat(prefix, "optimizer.state.exp_avg_sq.decoder.layers.mlp.linear_fc1.weight 1"));
    EXPECT_EQ(ReadOf(weights, *blocks, "optimizer.state.fp32_param.decoder.final_layernorm.weight"),
              absl::StrCat(prefix, "optimizer.state.param.decoder.final_layernorm.weight -1"));
  }
}

TEST(TorchImportTest, RefusesARunWithoutItsStates) {
  const auto expect = [](const FakeWeights& weights, absl::StatusCode code, const char* message) {
    const auto import = TorchImport::Match(weights, Llama());
    ASSERT_THAT(import, IsOk());
    EXPECT_THAT(import->BlocksWithStates().status(), StatusIs(code, HasSubstr(message)));
  };
  FakeWeights weights = AllLayersTogether();
  AddStates("", &weights);
  FakeWeights changed = weights;
  changed.shapes["optimizer.state.exp_avg.decoder.final_layernorm.weight"] = {31};
  expect(changed, absl::StatusCode::kDataLoss,
         "'optimizer.state.exp_avg.decoder.final_layernorm.weight' is missing, or has another");
  // A model in bf16 has masters.
  changed = weights;
  changed.shapes.erase("optimizer.state.param.decoder.final_layernorm.weight");
  expect(changed, absl::StatusCode::kDataLoss,
         "'optimizer.state.fp32_param.decoder.final_layernorm.weight' is missing");
  changed = weights;
  changed.shapes["optimizer.state.momentum_buffer.decoder.final_layernorm.weight"] = {32};
  expect(changed, absl::StatusCode::kInvalidArgument, "momentum_buffer is none of Adam's");
}

TEST(TorchImportTest, StatesMayComeFromElsewhere) {
  const FakeWeights weights = AllLayersTogether();
  ModelOptions model = Llama();
  std::string asked;
  const auto read = [&](absl::string_view state, const std::string& parameter, const Tensor&) {
    asked = absl::StrCat(state, " of ", parameter);
    return absl::OkStatus();
  };
  const std::string fc2 = "decoder.layers.2.mlp.linear_fc2.weight";
  auto import = TorchImport::Match(weights, model);
  ASSERT_THAT(import, IsOk());
  std::vector<ShardedTensor> blocks = import->BlocksWithStates(read);
  EXPECT_EQ(blocks.size(), 4u * (2 + 3 * 6));
  EXPECT_EQ(ReadOf(weights, blocks, fc2), "decoder.layers.mlp.linear_fc2.weight 2");
  for (const std::string state : {"fp32_param", "exp_avg", "exp_avg_sq"}) {
    ReadOf(weights, blocks, absl::StrCat("optimizer.state.", state, ".", fc2));
    EXPECT_EQ(asked, absl::StrCat(state, " of ", fc2));
  }
  // In fp32 there are no masters.
  model.transformer.dtype = DType::kFloat32;
  import = TorchImport::Match(weights, model);
  ASSERT_THAT(import, IsOk());
  EXPECT_EQ(import->BlocksWithStates(read).size(), 3u * (2 + 3 * 6));
}

// Writes numbers that say which element of which tensor they are.
class NumberedWeights : public FakeWeights {
 public:
  absl::Status Read(absl::string_view name, int64_t index, const Tensor& out) const override {
    EXPECT_EQ(index, -1) << name;
    int64_t count = 1;
    for (const int64_t size : *ShapeOf(name)) count *= size;
    const auto first =
        static_cast<float>(1000 * std::distance(shapes.begin(), shapes.find(std::string(name))));
    for (int64_t i = 0; i < count; ++i) out.data<float>()[i] = first + static_cast<float>(i);
    return absl::OkStatus();
  }
  // Element i of the tensor.
  float At(const std::string& name, int64_t i) const {
    return 1000 * static_cast<float>(std::distance(shapes.begin(), shapes.find(name))) +
           static_cast<float>(i);
  }
};

TEST(TorchImportTest, PartsOfMixersAreThoseOfAllGroups) {
  ModelOptions options = Llama();
  TransformerOptions& layer = options.transformer;
  layer.dtype = DType::kFloat32;
  layer.hidden_size = 2;
  layer.num_layers = 2;
  layer.hybrid_layers = {HybridLayer::kMamba, HybridLayer::kDelta};
  layer.mamba = {/*state_dim=*/3, /*head_dim=*/2, /*num_groups=*/2, /*num_heads=*/4};
  layer.delta = {/*conv_taps=*/4, /*key_head_dim=*/2, /*value_head_dim=*/3, /*num_key_heads=*/2,
                 /*num_value_heads=*/4};
  NumberedWeights weights;
  const auto stage = MakeStage(options, {{DeviceType::kMeta}});
  for (const Parameter* parameter : stage->parameters())
    weights.shapes[parameter->name] = parameter->sharding.global_shape.dims();
  const std::string mamba = "decoder.layers.0.mixer.", delta = "decoder.layers.1.self_attention.";
  for (const std::string& name :
       {mamba + "in_proj.weight", mamba + "conv1d.weight", mamba + "conv1d.bias",
        delta + "in_proj.weight", delta + "conv1d.weight"})
    ASSERT_EQ(weights.shapes.erase(name), 1u) << name;
  for (const auto& [part, rows] :
       std::map<std::string, int64_t>{{"z", 8}, {"x", 8}, {"B", 6}, {"C", 6}, {"dt", 4}}) {
    weights.shapes[mamba + "in_proj.weight." + part] = {rows, 2};
    if (part == "z" || part == "dt") continue;
    weights.shapes[mamba + "conv1d.weight." + part] = {rows, 1, 4};
    weights.shapes[mamba + "conv1d.bias." + part] = {rows};
  }
  for (const auto& [part, rows] : std::map<std::string, int64_t>{
           {"query", 4}, {"key", 4}, {"value", 12}, {"z", 12}, {"beta", 4}, {"alpha", 4}}) {
    weights.shapes[delta + "in_proj.weight." + part] = {rows, 2};
    if (part == "query" || part == "key" || part == "value")
      weights.shapes[delta + "conv1d.weight." + part] = {rows, 1, 4};
  }
  const auto import = TorchImport::Match(weights, options);
  ASSERT_THAT(import, IsOk());
  const auto values = [&](const std::string& name) {
    for (const ShardedTensor& block : import->Blocks()) {
      if (block.name != name) continue;
      std::vector<float> values(static_cast<size_t>(block.global_shape.numel()));
      EXPECT_THAT(block.source(Tensor(values.data(), DType::kFloat32, block.global_shape)), IsOk());
      return values;
    }
    return std::vector<float>();
  };
  // A group has 4 rows of z and of x, 3 of B and of C, and 2 steps: the second begins at row 16.
  const std::vector<float> packed = values(mamba + "in_proj.weight");
  ASSERT_EQ(packed.size(), 2u * 16 * 2);
  EXPECT_EQ(packed[0], weights.At(mamba + "in_proj.weight.z", 0));
  EXPECT_EQ(packed[(4 + 1) * 2 + 1], weights.At(mamba + "in_proj.weight.x", 1 * 2 + 1));
  EXPECT_EQ(packed[(16 + 8) * 2], weights.At(mamba + "in_proj.weight.B", 3 * 2));
  EXPECT_EQ(packed[(16 + 15) * 2 + 1], weights.At(mamba + "in_proj.weight.dt", 3 * 2 + 1));
  // And of the convolution 4, 3 and 3.
  EXPECT_EQ(values(mamba + "conv1d.bias")[10 + 7], weights.At(mamba + "conv1d.bias.C", 3));
  // A key head has 2 rows of q and of k, 6 of v and of gates, 2 of betas and of decays.
  const std::vector<float> vectors = values(delta + "in_proj.weight");
  EXPECT_EQ(vectors[(20 + 4) * 2], weights.At(delta + "in_proj.weight.value", 6 * 2));
  EXPECT_EQ(vectors[(20 + 18) * 2], weights.At(delta + "in_proj.weight.alpha", 2 * 2));
  EXPECT_EQ(values(delta + "conv1d.weight")[(10 + 2) * 4],
            weights.At(delta + "conv1d.weight.key", 2 * 4));

  weights.shapes[mamba + "in_proj.weight.B"] = {5, 2};
  EXPECT_THAT(TorchImport::Match(weights, options).status(),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("in_proj.weight.B' is missing, or")));
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
