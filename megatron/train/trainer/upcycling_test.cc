#include "megatron/train/trainer/upcycling.h"

#include <cmath>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/file_system.h"
#include "megatron/checkpoint/find_checkpoint.h"
#include "megatron/checkpoint/save_checkpoint.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::Pointwise;

constexpr char kLayer[] = "decoder.layers.1";
constexpr uint64_t kSeed = 5;

// Two parts of two channels, in two copies: a gated MLP of width 4 in a model of width 3.
TransformerOptions Mixture() {
  TransformerOptions options;
  options.hidden_size = 3;
  options.ffn_hidden_size = 4;
  options.gated = true;
  options.activation = ops::Activation::kSilu;
  options.moe.num_experts = 4;
  options.moe.ffn_hidden_size = 2;
  options.moe.router.topk = 2;
  return options;
}

class UpcyclingTest : public ::testing::Test {
 protected:
  UpcyclingTest() {
    const std::string mlp = absl::StrCat(kLayer, ".mlp.");
    Add(mlp + "linear_fc1.weight", {2, 4, 3}, 0);
    Add(mlp + "linear_fc1.bias", {2, 4}, 100);
    Add(mlp + "linear_fc2.weight", {3, 4}, 200);
    Add(mlp + "linear_fc2.bias", {3}, 300);
    Add(mlp + "linear_fc1.layer_norm_weight", {3}, 400);
    state_.run_id = "0123456789abcdef";
    SaveOptions save;
    save.directory = absl::StrCat(::testing::TempDir(), "/",
                                  ::testing::UnitTest::GetInstance()->current_test_info()->name());
    EXPECT_THAT(SaveCheckpoint(PosixFileSystem(), save, state_), IsOk());
    const auto found = FindLatestCheckpoint(PosixFileSystem(), save.directory);
    EXPECT_THAT(found, IsOk());
    directory_ = found->directory;
  }

  // Loads a block of the experts' tensor of that name.
  std::vector<float> Load(const Upcycling& upcycling, const std::string& name,
                          const Shape& global_shape, const Shape& offset, const Shape& shape,
                          const Parameter& parameter = {}) {
    std::vector<float> values(shape.numel());
    ShardedTensor block;
    block.name = absl::StrCat(kLayer, name);
    block.tensor = Tensor(values.data(), DType::kFloat32, shape);
    block.global_shape = global_shape;
    block.offset = offset;
    const auto reader = CheckpointReader::Open(PosixFileSystem(), directory_);
    EXPECT_THAT(reader, IsOk());
    status_ = upcycling.Load(*reader, parameter, block);
    return values;
  }

  absl::Status status_;

 private:
  void Add(const std::string& name, const Shape& shape, float first) {
    auto& values = values_.emplace_back(shape.numel());
    std::iota(values.begin(), values.end(), first);
    ShardedTensor tensor;
    tensor.name = name;
    tensor.tensor = Tensor(values.data(), DType::kFloat32, shape);
    tensor.global_shape = shape;
    tensor.offset = Shape(std::vector<int64_t>(shape.rank(), 0));
    state_.tensors.push_back(std::move(tensor));
  }

  std::vector<std::vector<float>> values_;
  CheckpointState state_;
  std::string directory_;
};

std::vector<float> Times(float factor, std::vector<float> values) {
  for (float& value : values) value *= factor;
  return values;
}

TEST_F(UpcyclingTest, AnExpertHasAPartOfTheMlp) {
  const Upcycling upcycling(Mixture(), kSeed);
  const float scale = std::cbrt(2.0f);
  // The second row of the gates of experts 1 and 2: rows 3 and 1 of the MLP's.
  EXPECT_THAT(Load(upcycling, ".mlp.experts.experts.linear_fc1.weight", {4, 2, 2, 3}, {1, 0, 1, 0},
                   {2, 1, 1, 3}),
              Pointwise(::testing::FloatNear(1e-4f), Times(scale, {9, 10, 11, 3, 4, 5})));
  EXPECT_THAT(status_, IsOk());
  // All of the biases of expert 3, whose gate is followed by what it multiplies.
  EXPECT_THAT(
      Load(upcycling, ".mlp.experts.experts.linear_fc1.bias", {4, 2, 2}, {3, 0, 0}, {1, 2, 2}),
      Pointwise(::testing::FloatNear(1e-3f), Times(scale, {102, 103, 106, 107})));
  EXPECT_THAT(
      Load(upcycling, ".mlp.experts.experts.linear_fc2.weight", {4, 3, 2}, {0, 1, 0}, {2, 1, 2}),
      Pointwise(::testing::FloatNear(1e-3f), Times(scale, {204, 205, 206, 207})));
  // The output's bias is whole in each expert, as Megatron has it.
  EXPECT_THAT(Load(upcycling, ".mlp.experts.experts.linear_fc2.bias", {4, 3}, {1, 0}, {2, 3}),
              ElementsAre(300, 301, 302, 300, 301, 302));
  EXPECT_THAT(Load(upcycling, ".pre_mlp_layernorm.weight", {3}, {1}, {2}), ElementsAre(401, 402));
  EXPECT_THAT(status_, IsOk());
}

TEST_F(UpcyclingTest, ScalesFollowTheRouterAndTheMlp) {
  const auto scale = [this](const TransformerOptions& options) {
    const int64_t experts = options.moe.num_experts;
    return Load(Upcycling(options, kSeed), ".mlp.experts.experts.linear_fc2.weight",
                {experts, 3, 2}, {0, 0, 0}, {1, 1, 2})[1] /
           201;
  };
  TransformerOptions options = Mixture();
  EXPECT_FLOAT_EQ(scale(options), std::cbrt(2.0f));
  options.gated = false;
  options.activation = ops::Activation::kGeluTanh;
  EXPECT_FLOAT_EQ(scale(options), std::sqrt(2.0f));
  options.activation = ops::Activation::kSquaredRelu;
  EXPECT_FLOAT_EQ(scale(options), std::cbrt(2.0f));
  // Two of 8 experts have an eighth of the probability each: 4 copies * 2 * 2 / 2.
  options.moe.num_experts = 8;
  options.moe.router.pre_softmax = true;
  EXPECT_FLOAT_EQ(scale(options), 2.0f);
}

TEST_F(UpcyclingTest, PartsOfACopyAreChosenAlike) {
  const Upcycling upcycling(Mixture(), kSeed);
  Parameter router;
  router.name = absl::StrCat(kLayer, ".mlp.router.weight");
  router.initializer = Initializer::Normal(0.5f);
  router.sharding = Replicated({4, 3});
  std::vector<float> initial(12);
  FillInitial(router, kSeed, Tensor(initial.data(), DType::kFloat32, {4, 3}));
  EXPECT_THAT(Load(upcycling, ".mlp.router.weight", {4, 3}, {1, 0}, {3, 3}, router),
              ElementsAre(initial[0], initial[1], initial[2], initial[3], initial[4], initial[5],
                          initial[3], initial[4], initial[5]));
  EXPECT_THAT(status_, IsOk());
}

TEST_F(UpcyclingTest, RefusesAnMlpOfAnotherWidth) {
  TransformerOptions options = Mixture();
  options.ffn_hidden_size = 2;
  Load(Upcycling(options, kSeed), ".mlp.experts.experts.linear_fc2.weight", {4, 3, 2}, {0, 0, 0},
       {1, 1, 2});
  EXPECT_THAT(status_, StatusIs(absl::StatusCode::kFailedPrecondition));
}

}  // namespace
}  // namespace megatron
