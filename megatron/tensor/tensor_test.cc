#include "megatron/tensor/tensor.h"

#include <numeric>
#include <sstream>
#include <vector>

#include "gtest/gtest.h"

namespace megatron {
namespace {

class TensorTest : public ::testing::Test {
 protected:
  TensorTest() : values_(24) { std::iota(values_.begin(), values_.end(), 0.0f); }
  std::vector<float> values_;
  Tensor t_{values_.data(), DType::kFloat32, {2, 3, 4}};
};

TEST_F(TensorTest, SlicesAndSelectionsPointIntoTheSameMemory) {
  const Tensor middle = t_.Slice(1, 1, 3);
  EXPECT_EQ(middle.shape(), Shape({2, 2, 4}));
  EXPECT_FALSE(middle.is_contiguous());
  EXPECT_EQ(middle.data<float>()[0], 4);
  const Tensor row = t_.Select(0, 1);
  EXPECT_EQ(row.shape(), Shape({3, 4}));
  EXPECT_TRUE(row.is_contiguous());
  EXPECT_EQ(row.data<float>()[0], 12);
  const Tensor column = t_.Select(-1, 2);
  EXPECT_EQ(column.shape(), Shape({2, 3}));
  EXPECT_EQ(column.data<float>()[column.stride(0) + 2 * column.stride(1)], 12 + 8 + 2);
}

TEST_F(TensorTest, ViewsKeepTheElements) {
  EXPECT_EQ(t_.View({6, 4}).stride(0), 4);
  EXPECT_EQ(t_.Flatten().numel(), 24);
  EXPECT_DEATH(t_.View({5, 5}), "viewed as");
  EXPECT_DEATH(t_.Slice(1, 0, 2).View({16}), "is_contiguous");
  EXPECT_DEATH(t_.data<int32_t>(), "fp32");
}

TEST_F(TensorTest, ADimOfAnyStridesCanBeSplit) {
  float numbers[24];
  const Tensor x(numbers, DType::kFloat32, {3, 8});
  const Tensor heads = x.Slice(1, 2, 8).SplitDim(1, 2);
  EXPECT_EQ(heads.shape(), Shape({3, 3, 2}));
  EXPECT_EQ(heads.stride(0), 8);
  EXPECT_EQ(heads.stride(1), 2);
  EXPECT_EQ(heads.stride(2), 1);
  EXPECT_EQ(heads.Select(0, 1).Select(0, 2).Select(0, 1).data<float>(), numbers + 8 + 2 + 5);
  EXPECT_EQ(x.Select(1, 3).SplitDim(0, 3).stride(1), 8);
}

TEST_F(TensorTest, EmptyMeansAbsentNotWithoutElements) {
  EXPECT_TRUE(Tensor().empty());
  EXPECT_FALSE(t_.Slice(0, 1, 1).empty());
  EXPECT_EQ(t_.Slice(0, 1, 1).numel(), 0);
}

TEST_F(TensorTest, MetaTensorsHaveShapesAndNoData) {
  const Tensor meta(nullptr, DType::kBFloat16, {4, 8}, {DeviceType::kMeta});
  EXPECT_EQ(meta.Slice(0, 1, 3).raw(), nullptr);
  EXPECT_EQ(meta.bytes(), 64);
  std::ostringstream text;
  text << meta;
  EXPECT_EQ(text.str(), "bf16[4, 8]@meta");
}

}  // namespace
}  // namespace megatron
