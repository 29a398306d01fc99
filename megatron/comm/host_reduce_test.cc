#include "megatron/comm/host_reduce.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"

namespace megatron {
namespace {

template <typename T>
std::vector<T> Reduce(ReduceOp op, const std::vector<std::vector<T>>& inputs) {
  std::vector<const void*> pointers;
  for (const std::vector<T>& input : inputs) pointers.push_back(input.data());
  std::vector<T> out(inputs[0].size());
  void* const output = out.data();
  ReduceOnHost(DTypeOf<T>::value, op, pointers, 0, out.size(), absl::MakeSpan(&output, 1));
  return out;
}

TEST(HostReduceTest, SumsInTheOrderGiven) {
  const float big = 1 << 24;  // big + 1 rounds to big
  EXPECT_EQ(Reduce<float>(ReduceOp::kSum, {{big}, {1}, {1}})[0], big);
  EXPECT_EQ(Reduce<float>(ReduceOp::kSum, {{1}, {1}, {big}})[0], big + 2);
}

TEST(HostReduceTest, RoundsSumsOfBfloat16Once) {
  // Rounding after each step would stay at 256: bf16 has 8 bits.
  const std::vector<BFloat16> one = {ToBFloat16(1)};
  EXPECT_EQ(ToFloat(Reduce<BFloat16>(ReduceOp::kSum, {{ToBFloat16(256)}, one, one})[0]), 258);
}

TEST(HostReduceTest, KeepsNaNsInAnyPosition) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin}) {
    const std::vector<float> result = Reduce<float>(op, {{nan, 1, 1}, {1, nan, 1}, {2, 2, nan}});
    for (float value : result) EXPECT_TRUE(std::isnan(value)) << Name(op);
  }
}

TEST(HostReduceTest, IntegersWrapAround) {
  const int32_t most = std::numeric_limits<int32_t>::max();
  EXPECT_EQ(Reduce<int32_t>(ReduceOp::kSum, {{most}, {1}})[0], std::numeric_limits<int32_t>::min());
  EXPECT_EQ(Reduce<uint8_t>(ReduceOp::kSum, {{200}, {100}})[0], 44);
}

TEST(HostReduceTest, WritesOnlyTheGivenRange) {
  const std::vector<int64_t> a(3000, 1), b(3000, 2);
  std::vector<int64_t> first(3000, -1), second(3000, -1);
  const void* const inputs[] = {a.data(), b.data()};
  void* const outputs[] = {first.data(), second.data()};
  ReduceOnHost(DType::kInt64, ReduceOp::kSum, inputs, 5, 2500, outputs);
  for (int i = 0; i < 3000; ++i) {
    const int64_t expected = i >= 5 && i < 2500 ? 3 : -1;
    ASSERT_EQ(first[i], expected) << i;
    ASSERT_EQ(second[i], expected) << i;
  }
}

TEST(HostReduceTest, SplittingTheRangeDoesNotChangeBits) {
  std::vector<float> a, b, whole(5000), cut(5000);
  for (int i = 0; i < 5000; ++i) {
    a.push_back(1.0f / (i + 1));
    b.push_back(std::sin(static_cast<float>(i)));
  }
  const void* const inputs[] = {a.data(), b.data()};
  void* output = whole.data();
  ReduceOnHost(DType::kFloat32, ReduceOp::kSum, inputs, 0, 5000, absl::MakeSpan(&output, 1));
  output = cut.data();
  for (int begin = 0; begin < 5000; begin += 777) {
    ReduceOnHost(DType::kFloat32, ReduceOp::kSum, inputs, begin, std::min(begin + 777, 5000),
                 absl::MakeSpan(&output, 1));
  }
  EXPECT_EQ(whole, cut);
}

}  // namespace
}  // namespace megatron
