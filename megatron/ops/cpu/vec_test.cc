#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/ops/cpu/isa.h"
#include "megatron/ops/cpu/vec_test_kernels.h"

namespace megatron::ops {
namespace {

const VecTestKernels& Kernels() {
  return ActiveIsa() == CpuIsa::kAvx512 ? avx512::kVecTestKernels : avx2::kVecTestKernels;
}

// Returns |got - want| in units of the last place of want, which may be subnormal.
double UlpError(float got, double want) {
  if (std::isnan(want)) return std::isnan(got) ? 0 : HUGE_VAL;
  const float rounded = static_cast<float>(want);
  if (std::isinf(rounded) || std::isinf(got)) return rounded == got ? 0 : HUGE_VAL;
  const int exponent = std::max(-149, std::ilogb(std::max(std::fabs(want), 1e-300)) - 23);
  return std::fabs(got - want) / std::ldexp(1.0, exponent);
}

using Kernel = void (*)(const float*, int64_t, float*);

void ExpectWithin(double ulp, Kernel kernel, double (*reference)(double),
                  const std::vector<float>& x) {
  std::vector<float> y(x.size());
  kernel(x.data(), static_cast<int64_t>(x.size()), y.data());
  double worst = 0;
  float at = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double error = UlpError(y[i], reference(x[i]));
    if (error > worst) {
      worst = error;
      at = x[i];
    }
  }
  EXPECT_LE(worst, ulp) << "at " << at;
}

std::vector<float> Grid(float from, float to, int count) {
  std::vector<float> out;
  for (int i = 0; i <= count; ++i) out.push_back(from + (to - from) * i / count);
  return out;
}

TEST(VecTest, ExpIsWithinTwoUlp) {
  ExpectWithin(2, Kernels().exp, std::exp, Grid(-87, 89.5f, 1000003));
  ExpectWithin(2, Kernels().exp, std::exp, {0, -0.0f, 1e-30f, HUGE_VALF, -HUGE_VALF, NAN});
}

TEST(VecTest, ExpUnderflowsGradually) {
  ExpectWithin(2, Kernels().exp, std::exp, Grid(-120, -87, 100003));
}

TEST(VecTest, LogIsWithinTwoUlp) {
  ExpectWithin(2, Kernels().log, std::log, Grid(1e-6f, 8, 1000003));
  std::vector<float> powers;
  for (float x = 1.2e-38f; x < 1e38f; x *= 1.00137f) powers.push_back(x);
  ExpectWithin(2, Kernels().log, std::log, powers);
  ExpectWithin(0, Kernels().log, std::log, {0, 1, HUGE_VALF, -1, NAN});
}

TEST(VecTest, ErfIsWithinTwoUlp) {
  ExpectWithin(2, Kernels().erf, std::erf, Grid(-6, 6, 1000003));
  ExpectWithin(2, Kernels().erf, std::erf, {0, 1e-20f, HUGE_VALF, -HUGE_VALF, NAN});
}

std::vector<float> AwkwardFloats() {
  std::vector<float> out = {0,
                            -0.0f,
                            HUGE_VALF,
                            -HUGE_VALF,
                            NAN,
                            -NAN,
                            65504,
                            65519.996f,
                            65520,
                            1e38f,
                            std::numeric_limits<float>::max(),
                            6e-8f,
                            3e-8f,
                            2.9e-8f,
                            1e-45f};
  for (uint32_t bits = 12345; bits < 0xffff0000u; bits += 60013) {
    float x;
    std::memcpy(&x, &bits, sizeof(x));
    out.push_back(x);
  }
  return out;
}

TEST(VecTest, NarrowsAsTheScalarConversionsDo) {
  const std::vector<float> in = AwkwardFloats();
  const int64_t count = static_cast<int64_t>(in.size());
  std::vector<BFloat16> bfloat16(in.size());
  std::vector<Float16> float16(in.size());
  Kernels().to_bfloat16(in.data(), count, bfloat16.data());
  Kernels().to_float16(in.data(), count, float16.data());
  for (size_t i = 0; i < in.size(); ++i) {
    ASSERT_EQ(bfloat16[i].bits, ToBFloat16(in[i]).bits) << in[i];
    if (std::isnan(in[i])) {
      ASSERT_TRUE(std::isnan(ToFloat(float16[i])));
    } else {
      ASSERT_EQ(float16[i].bits, ToFloat16(in[i]).bits) << in[i];
    }
  }
}

TEST(VecTest, WidensEverySixteenBitPattern) {
  std::vector<BFloat16> bfloat16(65536);
  std::vector<Float16> float16(65536);
  std::vector<float> wide_bfloat16(65536), wide_float16(65536);
  for (int i = 0; i < 65536; ++i) bfloat16[i].bits = float16[i].bits = static_cast<uint16_t>(i);
  Kernels().from_bfloat16(bfloat16.data(), 65536, wide_bfloat16.data());
  Kernels().from_float16(float16.data(), 65536, wide_float16.data());
  for (int i = 0; i < 65536; ++i) {
    ASSERT_EQ(UlpError(wide_bfloat16[i], ToFloat(bfloat16[i])), 0) << i;
    ASSERT_EQ(UlpError(wide_float16[i], ToFloat(float16[i])), 0) << i;
  }
}

TEST(VecTest, PartialVectorsTouchNothingElse) {
  for (int n = 0; n <= Kernels().lanes; ++n) {
    std::vector<float> in(n, 1.5f);
    std::vector<BFloat16> out(n + 1, BFloat16{0x1234});
    Kernels().to_bfloat16(in.data(), n, out.data());
    for (int i = 0; i < n; ++i) EXPECT_EQ(ToFloat(out[i]), 1.5f);
    EXPECT_EQ(out[n].bits, 0x1234);
    std::vector<float> back(n + 1, -7.0f);
    Kernels().from_bfloat16(out.data(), n, back.data());
    EXPECT_EQ(back[n], -7.0f);
  }
}

TEST(VecTest, ReducesAllLanes) {
  std::vector<float> in(Kernels().lanes);
  for (int i = 0; i < Kernels().lanes; ++i) in[i] = static_cast<float>(1 << i) * (i == 3 ? -1 : 1);
  float sum = 0;
  for (float x : in) sum += x;  // exact
  EXPECT_EQ(Kernels().sum(in.data()), sum);
  EXPECT_EQ(Kernels().max(in.data()), in.back());
}

TEST(PhiloxVecTest, DrawsTheWordsOfTheScalarGenerator) {
  const PhiloxKey key = {0x12345678u, 0x9abcdef0u};
  const uint64_t sample = 0x0000000512345678u;
  const uint32_t position = 77, threshold = 0x40000000u;
  for (int64_t first : {0, 1, 3, 4, 63, 770}) {
    for (int64_t count : {0, 1, 3, 4, 63, 64, 65, 200}) {
      std::vector<float> scales(count + 1, -7.0f);
      Kernels().dropout_scales(key, sample, position, first, count, threshold, 1.5f, scales.data());
      for (int64_t i = 0; i < count; ++i) {
        const uint32_t column = static_cast<uint32_t>(first + i);
        const PhiloxBlock block =
            Philox(key, {{static_cast<uint32_t>(sample), static_cast<uint32_t>(sample >> 32),
                          position, column / 4}});
        ASSERT_EQ(scales[i], block.word[column % 4] >= threshold ? 1.5f : 0.0f)
            << first << " " << i;
      }
      EXPECT_EQ(scales[count], -7.0f);
    }
  }
}

}  // namespace
}  // namespace megatron::ops
