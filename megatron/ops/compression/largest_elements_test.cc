#include "megatron/ops/compression/largest_elements.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/ops/compression/compression_harness.h"
#include "megatron/ops/host_tensor.h"

namespace megatron::ops {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;

class LargestElementsTest : public CompressionOpTest {};

TEST_F(LargestElementsTest, TheOthersStayAndAllComeTogetherAgain) {
  for (const int64_t count : {1, 7, 1000, 300000}) {
    // Few different values, so that many are equal.
    HostTensor x = HostTensor::Normal({count}, DType::kFloat32, 1);
    for (int64_t i = 0; i < count; i += 2) x.Set(i, std::round(x.Get(i) * 4) / 4);
    const std::vector<float> before = Floats(x);
    std::vector<int32_t> order(count);
    for (int64_t i = 0; i < count; ++i) order[i] = static_cast<int32_t>(i);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return std::abs(before[a]) > std::abs(before[b]);
    });
    for (const int64_t taken : {int64_t{0}, int64_t{1}, count / 100, count / 3, count}) {
      HostTensor rest = HostTensor::Of({count}, DType::kFloat32, {before.begin(), before.end()}),
                 indices({taken}, DType::kInt32), values({taken}, DType::kFloat32);
      TakeLargest(stream_, rest, indices, values);
      std::vector<int32_t> want(order.begin(), order.begin() + taken);
      std::sort(want.begin(), want.end());
      ASSERT_THAT(Ints(indices), ElementsAreArray(want)) << taken << " of " << count;
      std::vector<float> zeros = before;
      for (const int32_t i : want) zeros[i] = 0;
      EXPECT_EQ(Floats(rest), zeros);
      AddAtIndices(stream_, indices, values, rest);
      EXPECT_EQ(Floats(rest), before);
    }
  }
}

TEST_F(LargestElementsTest, WhatIsNotFiniteIsLargest) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  HostTensor x = HostTensor::Of({5}, DType::kFloat32, {1, -kInfinity, 3e38, std::nan(""), -2}),
             indices({3}, DType::kInt32), values({3}, DType::kFloat32);
  TakeLargest(stream_, x, indices, values);
  EXPECT_THAT(Ints(indices), ElementsAre(1, 2, 3));
  EXPECT_THAT(Floats(x), ElementsAre(1, 0, 0, 0, -2));
}

TEST_F(LargestElementsTest, CountsWhatIsAboveAThreshold) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const HostTensor few =
      HostTensor::Of({6}, DType::kFloat32, {1, -kInfinity, 2, std::nan(""), -2, 0});
  EXPECT_EQ(CountAbove(stream_, few, 0), 5);
  EXPECT_EQ(CountAbove(stream_, few, 1), 4);
  EXPECT_EQ(CountAbove(stream_, few, 2), 2);
  const HostTensor x = HostTensor::Normal({300001}, DType::kFloat32, 1);
  const std::vector<float> values = Floats(x);
  EXPECT_EQ(CountAbove(stream_, x, 0.5f), std::count_if(values.begin(), values.end(), [](float v) {
              return std::abs(v) > 0.5f;
            }));
}

TEST_F(LargestElementsTest, AnIndexOutsideEndsTheProgram) {
  const HostTensor values = HostTensor::Of({2}, DType::kFloat32, {1, 2}), x({3}, DType::kFloat32);
  const auto add_at = [&](double first, double second) {
    AddAtIndices(stream_, HostTensor::Of({2}, DType::kInt32, {first, second}), values, x);
  };
  EXPECT_DEATH(add_at(0, 3), "index 1 is 3");
  EXPECT_DEATH(add_at(-1, 1), "index 0 is -1");
  EXPECT_DEATH(add_at(1, 1), "index 1 is 1");
}

}  // namespace
}  // namespace megatron::ops
