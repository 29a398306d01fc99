#include "megatron/ops/compression/group_codes.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/base/thread_pool.h"
#include "megatron/ops/host_tensor.h"

namespace megatron::ops {
namespace {

class GroupCodesTest : public ::testing::TestWithParam<CodeBits> {
 protected:
  // Returns what is received of the elements.
  std::vector<double> SendAndReceive(const HostTensor& x) {
    const int64_t count = x.tensor().numel();
    const HostTensor message({GroupMessageBytes(GetParam(), count)}, DType::kUInt8),
        received({count}, x.tensor().dtype());
    EncodeGroups(stream_, GetParam(), x, message);
    DecodeGroups(stream_, GetParam(), message, received);
    std::vector<double> values;
    for (int64_t i = 0; i < count; ++i) values.push_back(received.Get(i));
    return values;
  }

  double largest_code() const { return GetParam() == CodeBits::k8 ? 127 : 7; }

  ThreadPool pool_{2};
  Stream stream_ = Stream::Cpu(&pool_);
};

// The reference rounds in double. A quotient near the middle between two codes may be rounded to
// either.
TEST_P(GroupCodesTest, AnElementIsTheNearestMultipleOfItsGroupsScale) {
  const int64_t size = GroupSize(GetParam());
  for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    const double own = dtype == DType::kFloat32 ? 1e-6 : dtype == DType::kFloat16 ? 1e-3 : 5e-3;
    for (int64_t count : {int64_t{1}, int64_t{63}, size, size + 1, int64_t{20011}}) {
      const HostTensor x = HostTensor::Normal({count}, dtype, 3);
      const std::vector<double> received = SendAndReceive(x);
      for (int64_t begin = 0; begin < count; begin += size) {
        const int64_t end = std::min(count, begin + size);
        double largest = 0;
        for (int64_t i = begin; i < end; ++i) largest = std::max(largest, std::abs(x.Get(i)));
        const double scale = largest / largest_code();
        for (int64_t i = begin; i < end; ++i) {
          EXPECT_LE(std::abs(received[i] - x.Get(i)), scale / 2 + own * largest) << i;
          const double code = received[i] / scale;
          EXPECT_NEAR(code, std::round(code), 2 * own * largest_code()) << i;
        }
      }
    }
  }
}

TEST_P(GroupCodesTest, MultiplesOfTheScaleAreExact) {
  std::vector<double> values;
  const int c = static_cast<int>(largest_code());
  for (int code = -c; code <= c; ++code) values.push_back(code * 0.125);
  const auto count = static_cast<int64_t>(values.size());
  EXPECT_EQ(SendAndReceive(HostTensor::Of({count}, DType::kFloat32, values)), values);
  const std::vector<double> zeros(3 * GroupSize(GetParam()), 0);
  EXPECT_EQ(
      SendAndReceive(HostTensor::Of({static_cast<int64_t>(zeros.size())}, DType::kFloat32, zeros)),
      zeros);
}

TEST_P(GroupCodesTest, WhatIsNotFiniteMakesNansOfItsGroupAlone) {
  const int64_t size = GroupSize(GetParam());
  for (const double bad : {std::nan(""), std::numeric_limits<double>::infinity(),
                           -std::numeric_limits<double>::infinity()}) {
    for (const int64_t place : {size, 2 * size - 1}) {
      std::vector<double> values(3 * size, 1);
      values[place] = bad;
      const std::vector<double> received =
          SendAndReceive(HostTensor::Of({3 * size}, DType::kFloat32, values));
      for (int64_t i = 0; i < 3 * size; ++i)
        EXPECT_EQ(std::isnan(received[i]), i / size == 1) << i << " " << bad;
    }
  }
}

// Magnitudes of which fp32 has few digits, and its largest.
TEST_P(GroupCodesTest, TheEndsOfTheRangeStayInRange) {
  for (const double largest : {1.4e-45, 1e-44, 1e-38, 3e38}) {
    const HostTensor x = HostTensor::Of({3}, DType::kFloat32, {largest, -largest, largest / 3});
    for (const double value : SendAndReceive(x)) {
      EXPECT_TRUE(std::isfinite(value));
      EXPECT_LE(std::abs(value), 1.001 * largest);
    }
  }
}

TEST_P(GroupCodesTest, SumsAreAddedInFp32) {
  constexpr int64_t kCount = 777;
  const HostTensor x = HostTensor::Normal({kCount}, DType::kFloat32, 5),
                   message({GroupMessageBytes(GetParam(), kCount)}, DType::kUInt8),
                   received({kCount}, DType::kFloat32),
                   sum = HostTensor::Normal({kCount}, DType::kFloat32, 6),
                   before = HostTensor::Normal({kCount}, DType::kFloat32, 6);
  EncodeGroups(stream_, GetParam(), x, message);
  DecodeGroups(stream_, GetParam(), message, received);
  AddDecodedGroups(stream_, GetParam(), message, sum);
  for (int64_t i = 0; i < kCount; ++i) {
    EXPECT_EQ(sum.tensor().data<float>()[i],
              before.tensor().data<float>()[i] + received.tensor().data<float>()[i]);
  }
}

TEST_P(GroupCodesTest, AMessageHasAScaleForEachGroup) {
  const bool bytes = GetParam() == CodeBits::k8;
  EXPECT_EQ(GroupMessageBytes(GetParam(), 1024), bytes ? 1024 + 4 * 4 : 512 + 16 * 4);
  EXPECT_EQ(GroupMessageBytes(GetParam(), 1), 16);
  EXPECT_EQ(GroupMessageBytes(GetParam(), 65), bytes ? 80 : 48);
}

INSTANTIATE_TEST_SUITE_P(Bits, GroupCodesTest, ::testing::Values(CodeBits::k4, CodeBits::k8));

}  // namespace
}  // namespace megatron::ops
