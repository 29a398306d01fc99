#include "megatron/optim/rules/matrix_block.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/tensor/axis.h"

namespace megatron {
namespace {

using Cut = MatrixBlock::Cut;
using ::testing::ElementsAre;

Parameter WithShape(const Sharding& sharding, const MatrixDims& dims) {
  Parameter parameter;
  parameter.name = "weight";
  parameter.sharding = sharding;
  parameter.matrix = dims;
  return parameter;
}

// The first element of each row of a block, where the parameter's elements are their positions.
std::vector<float> FirstOfRows(const MatrixBlock& block, const Parameter& parameter) {
  std::vector<float> positions(parameter.sharding.local_shape.numel());
  for (size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<float>(i);
  Tensor rows = block.Of(Tensor(positions.data(), DType::kFloat32, parameter.sharding.local_shape));
  std::vector<float> first;
  EXPECT_EQ(rows.numel(), block.numel());
  if (rows.rank() == 2) {
    for (int64_t i = 0; i < rows.dim(0); ++i) first.push_back(*rows.Select(0, i).data<float>());
    return first;
  }
  for (int64_t g = 0; g < rows.dim(0); ++g) {
    for (int64_t h = 0; h < rows.dim(1); ++h) {
      for (int64_t d = 0; d < rows.dim(2); ++d)
        first.push_back(*rows.Select(0, g).Select(0, h).Select(0, d).data<float>());
    }
  }
  return first;
}

// Two groups of two heads of one row, with a key and a value each; rows of 10.
TEST(MatrixBlockTest, QueriesKeysAndValuesAreMatrices) {
  const Parameter qkv = WithShape(Replicated({2, 4, 1, 10}), {0, {2, 1, 1}});
  const std::vector<MatrixBlock> blocks = MatrixBlocksOf(qkv, /*splits_parts=*/true);
  ASSERT_EQ(blocks.size(), 3u);
  EXPECT_THAT(FirstOfRows(blocks[0], qkv), ElementsAre(0, 10, 40, 50));
  EXPECT_THAT(FirstOfRows(blocks[1], qkv), ElementsAre(20, 60));
  EXPECT_THAT(FirstOfRows(blocks[2], qkv), ElementsAre(30, 70));
  for (const MatrixBlock& block : blocks) {
    EXPECT_EQ(block.cut, Cut::kNone);
    EXPECT_EQ(block.columns, 10);
  }
  const std::vector<MatrixBlock> one = MatrixBlocksOf(qkv, /*splits_parts=*/false);
  ASSERT_EQ(one.size(), 1u);
  EXPECT_EQ(one[0].rows, 8);
}

TEST(MatrixBlockTest, RanksHaveRowsOrColumns) {
  const Parameter qkv = WithShape(SplitOverTensor({4, 4, 3, 10}, 0, 2, 1), {0, {2, 1, 1}});
  const std::vector<MatrixBlock> blocks = MatrixBlocksOf(qkv, true);
  EXPECT_EQ(blocks[0].cut, Cut::kRows);
  EXPECT_EQ(blocks[0].rows, 12);
  EXPECT_EQ(blocks[0].whole_rows, 24);
  EXPECT_EQ(blocks[0].count(), 2);
  const Parameter row = WithShape(SplitOverTensor({6, 8}, 1, 4, 1), {});
  const MatrixBlock block = MatrixBlocksOf(row, true)[0];
  EXPECT_EQ(block.cut, Cut::kColumns);
  EXPECT_EQ(block.count(), 4);
  EXPECT_EQ(block.whole_columns, 8);
}

// Four ranks, two groups: a rank has a head of its group, and shares its key and value.
TEST(MatrixBlockTest, RanksThatShareAGroupHoldItsKeysTogether) {
  Sharding own = Replicated({2, 4, 3, 10});
  own.offset = {1, 1, 0, 0};
  own.local_shape = {1, 1, 3, 10};
  own.sharded = {Axis::kTensor};
  const Parameter queries = WithShape(own, {0, {2, 1, 1}});
  const std::vector<MatrixBlock> query = MatrixBlocksOf(queries, true);
  ASSERT_EQ(query.size(), 1u);
  EXPECT_EQ(query[0].whole_rows, 12);
  EXPECT_EQ(query[0].count(), 4);
  Sharding shared = own;
  shared.offset = {1, 2, 0, 0};
  shared.local_shape = {1, 2, 3, 10};
  shared.tensor_replicas = 2;
  const Parameter rest = WithShape(shared, {0, {2, 1, 1}});
  const std::vector<MatrixBlock> key_value = MatrixBlocksOf(rest, true);
  ASSERT_EQ(key_value.size(), 2u);
  for (const MatrixBlock& block : key_value) {
    EXPECT_EQ(block.replicas, 2);
    EXPECT_EQ(block.whole_rows, 6);
    EXPECT_EQ(block.count(), 2);
  }
  EXPECT_THAT(FirstOfRows(key_value[1], rest), ElementsAre(30, 40, 50));
}

TEST(MatrixBlockTest, EachExpertsGateAndUpAreMatrices) {
  Sharding sharding = Replicated({4, 2, 6, 5});
  sharding.expert_grid = true;
  sharding.sharded = {Axis::kExpert, Axis::kTensor};
  sharding.local_shape = {2, 2, 3, 5};
  const Parameter fc1 = WithShape(sharding, {2, {}});
  const std::vector<MatrixBlock> blocks = MatrixBlocksOf(fc1, true);
  ASSERT_EQ(blocks.size(), 4u);
  EXPECT_THAT(FirstOfRows(blocks[1], fc1), ElementsAre(15, 20, 25));
  EXPECT_THAT(FirstOfRows(blocks[2], fc1), ElementsAre(30, 35, 40));
  for (const MatrixBlock& block : blocks) {
    EXPECT_EQ(block.cut, Cut::kRows);
    EXPECT_EQ(block.whole_rows, 6);
  }
}

}  // namespace
}  // namespace megatron
