#include "megatron/plan/tensor_grid_traffic.h"

#include "gtest/gtest.h"

namespace megatron {
namespace {

// A layer of a GPT-3 of 175 billion parameters.
LayerMatrices Gpt3() { return MatricesOf(12288, 4 * 12288, false, 96, 96, 128); }

TEST(TensorGridTrafficTest, AGptsLayerHasSevenHiddenInputsAndTwelveHiddenSquaredWeights) {
  EXPECT_EQ(Gpt3().inputs, 7 * 12288);
  EXPECT_EQ(Gpt3().outputs, 9 * 12288);
  EXPECT_EQ(Gpt3().elements, int64_t{12} * 12288 * 12288);
  // Llama 3 8B: groups share keys and values, and a gate doubles the first matrix of the MLP.
  const LayerMatrices llama = MatricesOf(4096, 14336, true, 32, 8, 128);
  EXPECT_EQ(llama.inputs, 3 * 4096 + 14336);
  EXPECT_EQ(llama.outputs, 6144 + 4096 + 2 * 14336 + 4096);
  EXPECT_EQ(llama.elements, 4096 * (6144 + 4096 + 3 * 14336));
}

// With 16-bit gradients of weights it would be 3 / 4 of the weights' part: 1305 MB for 2048 tokens,
// as the paper's formula gives.
TEST(TensorGridTrafficTest, BytesAreThoseOfTheFormulas) {
  const double h = 12288, m = 2048;
  EXPECT_DOUBLE_EQ(BytesReceivedIn1d(Gpt3(), 64, 2048, 2), 8.0 * 63 / 64 * m * h * 2);
  EXPECT_DOUBLE_EQ(BytesReceivedOnGrid(Gpt3(), {8}, 2048, 2),
                   7.0 / 64 * (3 * 2 * 7 * m * h + 8 * 12 * h * h));
  EXPECT_NEAR(7.0 / 64 * (3 * 2 * 7 * m * h + 6 * 12 * h * h), 1305e6, 0.5e6);
  EXPECT_EQ(BytesOfLevels(Gpt3(), {8}), 0);
}

// The levels share the tokens, not the weights.
TEST(TensorGridTrafficTest, SquaresSendFewerInputsTheMoreLevelsThereAre) {
  const double h = 12288, m = 2048;
  EXPECT_DOUBLE_EQ(BytesReceivedOnGrid(Gpt3(), {4, 4}, 2048, 2),
                   3.0 / 16 * (3 * 2 * 7 * m * h / 4 + 8 * 12 * h * h));
  EXPECT_DOUBLE_EQ(BytesOfLevels(Gpt3(), {4, 4}), 2 * 3.0 / 4 * 4 * 12 * h * h / 16);
}

// The published program keeps what it has gathered, and gathers no inputs in its backward pass.
TEST(TensorGridTrafficTest, ACubeSendsInputsWeightsAndOutputs) {
  const double h = 12288, m = 2048;
  EXPECT_DOUBLE_EQ(BytesReceivedOnGrid(Gpt3(), {4, 4, true}, 2048, 2),
                   3.0 / 64 * (2 * (3 * 7 + 2 * 9) * m * h + 8 * 12 * h * h));
  EXPECT_EQ(BytesOfLevels(Gpt3(), {4, 4, true}), 0);
  double forward = 0;
  for (const GridCall& call : GridCallsOf(Gpt3(), {4, 4, true}, 2048, 2))
    forward += call.is_forward ? call.received() : 0;
  EXPECT_DOUBLE_EQ(forward, 3.0 / 64 * 2 * (16 * m * h + 12 * h * h));
}

TEST(TensorGridTrafficTest, GridsWinFromSomeNumberOfTokensOn) {
  for (const PlanGrid& grid : {PlanGrid{2}, PlanGrid{3}, PlanGrid{8}, PlanGrid{2, 2},
                               PlanGrid{4, 4}, PlanGrid{2, 2, true}, PlanGrid{4, 4, true}}) {
    const auto tokens = TokensFromWhichGridIsLess(Gpt3(), grid, 2);
    ASSERT_TRUE(tokens.has_value()) << grid.mode() << " of " << grid.ranks();
    EXPECT_LT(BytesReceivedOnGrid(Gpt3(), grid, *tokens, 2),
              BytesReceivedIn1d(Gpt3(), grid.ranks(), *tokens, 2));
    EXPECT_GE(BytesReceivedOnGrid(Gpt3(), grid, *tokens - 1, 2),
              BytesReceivedIn1d(Gpt3(), grid.ranks(), *tokens - 1, 2));
  }
  // An MLP so wide that its inputs alone are more than what 1D adds up.
  EXPECT_FALSE(TokensFromWhichGridIsLess(MatricesOf(1024, 1 << 16, false, 8, 8, 128), {2}, 2));
}

}  // namespace
}  // namespace megatron
