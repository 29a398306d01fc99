#include "megatron/optim/outer/outer_codec.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/ops/compression/group_codes.h"

namespace megatron {
namespace {

constexpr int64_t kInt8Group = ops::GroupSize(ops::CodeBits::k8);
constexpr OuterGradientType kCodes[] = {OuterGradientType::kInt8, OuterGradientType::kE3M0};

std::vector<float> ThereAndBack(OuterGradientType type, const std::vector<float>& values) {
  const int64_t count = static_cast<int64_t>(values.size());
  // Bytes behind the codes stay as they are.
  const int64_t bytes = OuterCodeBytes(type, count);
  std::vector<uint8_t> codes(bytes + 1, 0x5a);
  std::vector<float> elements = values, decoded(values.size(), -1);
  const Tensor message(codes.data(), DType::kUInt8, {bytes});
  EncodeOuter(Stream::Inline(), type, Tensor(elements.data(), DType::kFloat32, {count}), message);
  EXPECT_EQ(codes.back(), 0x5a);
  DecodeOuter(Stream::Inline(), type, message, Tensor(decoded.data(), DType::kFloat32, {count}));
  return decoded;
}

TEST(OuterCodecTest, EightBitsAndFourBitsAndAScaleForEachBlock) {
  // 529 bytes, in whole runs of 16.
  EXPECT_EQ(OuterCodeBytes(OuterGradientType::kInt8, 2 * 256 + 5), 2 * (4 + 256) + 4 + 5 + 15);
  EXPECT_EQ(OuterCodeBytes(OuterGradientType::kE3M0, 2 * 128 + 5), 2 * (1 + 64) + 1 + 3);
}

TEST(OuterCodecTest, EveryE3M0NumberIsItself) {
  for (const int exponent : {-100, -7, 0, 3, 100}) {
    std::vector<float> values = {0};
    for (int k = 0; k < 7; ++k) {
      values.push_back(std::ldexp(1.0f, exponent - k));
      values.push_back(-std::ldexp(1.0f, exponent - k));
    }
    EXPECT_EQ(values.size(), 15u);  // the sixteenth code is -0
    EXPECT_EQ(ThereAndBack(OuterGradientType::kE3M0, values), values) << exponent;
  }
}

// Returns the largest magnitude of a block.
float LargestOf(const std::vector<float>& values, int64_t begin, int64_t end) {
  float largest = 0;
  for (int64_t i = begin; i < end; ++i) largest = std::max(largest, std::abs(values[i]));
  return largest;
}

TEST(OuterCodecTest, EachElementBecomesTheNearestNumberOfItsBlock) {
  std::mt19937 random(7);
  std::uniform_real_distribution<float> exponents(-9, 0);
  for (const int64_t count : {1, 2, 127, 128, 129, 1000}) {
    std::vector<float> values(count);
    for (float& value : values)
      value = std::exp2(exponents(random)) * (random() % 2 == 0 ? 1.0f : -1.0f);
    const std::vector<float> int8 = ThereAndBack(OuterGradientType::kInt8, values);
    const std::vector<float> e3m0 = ThereAndBack(OuterGradientType::kE3M0, values);
    for (int64_t begin = 0; begin < count; begin += kInt8Group) {
      const int64_t end = std::min(count, begin + kInt8Group);
      const float largest = LargestOf(values, begin, end);
      for (int64_t i = begin; i < end; ++i)
        EXPECT_NEAR(int8[i], values[i], largest / 127 * 0.5001f);
    }
    for (int64_t begin = 0; begin < count; begin += kE3M0Block) {
      const int64_t end = std::min(count, begin + kE3M0Block);
      const float largest = LargestOf(values, begin, end);
      float top = std::exp2(std::floor(std::log2(largest)));
      if (largest >= 1.5f * top) top *= 2;
      for (int64_t i = begin; i < end; ++i) {
        float nearest = 0;
        for (int k = 0; k < 7; ++k) {
          const float number = std::copysign(std::ldexp(top, -k), values[i]);
          if (std::abs(number - values[i]) < std::abs(nearest - values[i])) nearest = number;
        }
        EXPECT_EQ(e3m0[i], nearest) << values[i] << " below " << largest;
      }
    }
  }
}

TEST(OuterCodecTest, ZerosStayAndTinyNumbersDoNoHarm) {
  for (const OuterGradientType type : kCodes) {
    const std::vector<float> zeros(200);
    EXPECT_EQ(ThereAndBack(type, zeros), zeros);
    const float tiny = std::numeric_limits<float>::denorm_min();
    for (const float value : ThereAndBack(type, {tiny, -40 * tiny, 0})) {
      EXPECT_TRUE(std::isfinite(value));
      EXPECT_LE(std::abs(value), 1e-35f);
    }
    const float most = std::numeric_limits<float>::max();
    for (const float value : ThereAndBack(type, {most / 2, -most / 4}))
      EXPECT_TRUE(std::isfinite(value));
  }
}

TEST(OuterCodecTest, WhatIsNotFiniteMakesItsBlockNaNs) {
  for (const OuterGradientType type : kCodes) {
    for (const float bad :
         {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      const int64_t block = type == OuterGradientType::kInt8 ? kInt8Group : kE3M0Block;
      std::vector<float> values(2 * block, 1.0f);
      values[3] = bad;
      const std::vector<float> decoded = ThereAndBack(type, values);
      for (int64_t i = 0; i < block; ++i) EXPECT_TRUE(std::isnan(decoded[i])) << i;
      for (int64_t i = block; i < 2 * block; ++i) EXPECT_FLOAT_EQ(decoded[i], 1) << i;
    }
  }
}

}  // namespace
}  // namespace megatron
