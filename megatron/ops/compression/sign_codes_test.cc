#include "megatron/ops/compression/sign_codes.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/base/thread_pool.h"
#include "megatron/ops/host_tensor.h"

namespace megatron::ops {
namespace {

using Floats = std::vector<float>;

Tensor Of(Floats& x) { return {x.data(), DType::kFloat32, {static_cast<int64_t>(x.size())}}; }

struct Coded {
  std::vector<uint8_t> codes;
  float scale = 0;
  Floats rest;
};

Coded Encode(Floats x, int threads = 1) {
  ThreadPool pool(threads);
  Coded coded;
  coded.codes.resize(x.size() / 8);
  const Tensor codes(coded.codes.data(), DType::kUInt8, {static_cast<int64_t>(x.size()) / 8});
  EncodeSigns(Stream::Cpu(&pool), Of(x), codes, Tensor(&coded.scale, DType::kFloat32, {1}));
  coded.rest = x;
  return coded;
}

TEST(SignCodesTest, AByteBeginsWithItsHighestBitAndZeroIsPositive) {
  const Coded coded = Encode({1, -1, 0, -0.0f, -1, 1, -1, -1, 3, 3, 3, 3, 3, 3, 3, -3});
  EXPECT_EQ(coded.codes, (std::vector<uint8_t>{0b10110100, 0b11111110}));
  EXPECT_EQ(coded.scale, std::sqrt(78.0f / 16));
  EXPECT_EQ(coded.rest[0], 1 - coded.scale);
  EXPECT_EQ(coded.rest[1], -1 + coded.scale);
  EXPECT_EQ(coded.rest[2], -coded.scale);
}

// Two ranks send the same tensor again and again, with what was left of it before.
TEST(SignCodesTest, BytesAreThoseOfTheExample) {
  const float scales[] = {4.636809f, 5.771573f, 6.674820f};
  const std::vector<uint8_t> bytes[2][3] = {{{1, 255}, {6, 63}, {9, 223}},
                                            {{54, 201}, {18, 91}, {118, 200}}};
  for (int rank = 0; rank < 2; ++rank) {
    Floats rest(16, 0);
    for (int step = 0; step < 3; ++step) {
      for (int i = 0; i < 16; ++i)
        rest[i] += static_cast<float>(rank == 0 ? i - 7 : 5 * i % 16 - 8);
      const Coded coded = Encode(rest);
      EXPECT_EQ(coded.codes, bytes[rank][step]) << "rank " << rank << ", step " << step;
      EXPECT_NEAR(coded.scale, scales[step], 1e-5);
      rest = coded.rest;
    }
  }
}

TEST(SignCodesTest, CodesAndTheRestAddUpToTheValues) {
  const HostTensor x = HostTensor::Normal({40000}, DType::kFloat32, 7);
  const Floats values(x.tensor().data<float>(), x.tensor().data<float>() + 40000);
  Coded coded = Encode(values);
  ThreadPool pool(2);
  const Tensor codes(coded.codes.data(), DType::kUInt8, {5000});
  AddSigns(Stream::Cpu(&pool), codes, Tensor(&coded.scale, DType::kFloat32, {1}), 1,
           Of(coded.rest));
  for (int i = 0; i < 40000; ++i) ASSERT_NEAR(coded.rest[i], values[i], 1e-6) << i;
}

TEST(SignCodesTest, ThreadsDecideNothing) {
  const HostTensor x = HostTensor::Normal({40000}, DType::kFloat32, 8);
  const Floats values(x.tensor().data<float>(), x.tensor().data<float>() + 40000);
  const Coded one = Encode(values, 1), three = Encode(values, 3);
  EXPECT_EQ(one.codes, three.codes);
  EXPECT_EQ(one.scale, three.scale);
  EXPECT_EQ(one.rest, three.rest);
}

TEST(SignCodesTest, ATensorMayEndWithinAByte) {
  std::vector<uint8_t> codes = {0b10100000};
  float scale = 3;
  Floats x = {10, 20, 30};
  ThreadPool pool(1);
  AddSigns(Stream::Cpu(&pool), Tensor(codes.data(), DType::kUInt8, {1}),
           Tensor(&scale, DType::kFloat32, {1}), 2, Of(x));
  EXPECT_EQ(x, (Floats{11.5, 18.5, 31.5}));
}

TEST(SignCodesTest, ATensorMayBeginWithinAByte) {
  std::vector<uint8_t> codes = {0b00000010, 0b11000000};
  float scale = 3;
  Floats x = {10, 20, 30, 40};
  ThreadPool pool(1);
  AddSigns(Stream::Cpu(&pool), Tensor(codes.data(), DType::kUInt8, {2}),
           Tensor(&scale, DType::kFloat32, {1}), 1, Of(x), /*first=*/6);
  EXPECT_EQ(x, (Floats{13, 17, 33, 43}));
}

TEST(SignCodesTest, WhatIsNotFiniteMakesAllNotFinite) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    const Coded coded = Encode({1, 2, 3, bad, 5, 6, 7, 8});
    EXPECT_FALSE(std::isfinite(coded.scale));
    for (const float rest : coded.rest) EXPECT_FALSE(std::isfinite(rest));
  }
}

TEST(SignCodesTest, ElementsAreZeroWhereOthersAre) {
  Floats other = {1, 0, -0.0f, 1e-30f}, x = {5, 6, 7, 8};
  ThreadPool pool(1);
  ZeroWhereZero(Stream::Cpu(&pool), Of(other), Of(x));
  EXPECT_EQ(x, (Floats{5, 0, 0, 8}));
}

}  // namespace
}  // namespace megatron::ops
