#include "megatron/tensor/float8.h"

#include <cmath>
#include <limits>
#include <string>

#include "gtest/gtest.h"
#include "megatron/tensor/dtype.h"

namespace megatron {
namespace {

constexpr Float8Format kE4M3 = Float8Format::kE4M3, kE5M2 = Float8Format::kE5M2;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(Float8Test, NamesRoundTrip) {
  for (Float8Format format : {kE4M3, kE5M2}) {
    Float8Format back = format == kE4M3 ? kE5M2 : kE4M3;
    ASSERT_TRUE(FromName(Name(format), &back));
    EXPECT_EQ(back, format);
  }
  Float8Format unused;
  EXPECT_FALSE(FromName("fp8", &unused));
}

// The codes of E5M2 are the upper halves of those of fp16.
TEST(Float8Test, EveryCodeOfE5M2IsAShortenedFp16) {
  for (int code = 0; code < 256; ++code) {
    const float fp16 = ToFloat(Float16{static_cast<uint16_t>(code << 8)});
    const float fp8 = Float8ToFloat(kE5M2, static_cast<uint8_t>(code));
    if (std::isnan(fp16)) {
      EXPECT_TRUE(std::isnan(fp8)) << code;
    } else {
      EXPECT_EQ(fp8, fp16) << code;
      EXPECT_EQ(std::signbit(fp8), std::signbit(fp16)) << code;
    }
  }
}

TEST(Float8Test, EveryCodeOfE4M3IsWhatItsDefinitionSays) {
  for (int code = 0; code < 256; ++code) {
    const float value = Float8ToFloat(kE4M3, static_cast<uint8_t>(code));
    const int exponent = code >> 3 & 15, mantissa = code & 7;
    if (exponent == 15 && mantissa == 7) {
      EXPECT_TRUE(std::isnan(value)) << code;
      continue;
    }
    const double magnitude =
        exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(1 + mantissa / 8.0, exponent - 7);
    EXPECT_EQ(std::fabs(value), magnitude) << code;
    EXPECT_EQ(std::signbit(value), code >= 128) << code;
  }
  EXPECT_EQ(Float8ToFloat(kE4M3, 0x7e), Float8Max(kE4M3));
  EXPECT_EQ(Float8ToFloat(kE5M2, 0x7b), Float8Max(kE5M2));
}

TEST(Float8Test, EveryFiniteCodeSurvivesARoundTrip) {
  for (Float8Format format : {kE4M3, kE5M2}) {
    for (int code = 0; code < 256; ++code) {
      const float value = Float8ToFloat(format, static_cast<uint8_t>(code));
      if (std::isfinite(value)) {
        EXPECT_EQ(FloatToFloat8(format, value), code) << Name(format);
      }
    }
  }
}

// A value between two neighbours becomes the nearer one, and in the middle the even one.
TEST(Float8Test, RoundsToNearestEven) {
  for (Float8Format format : {kE4M3, kE5M2}) {
    const int largest = format == kE4M3 ? 0x7e : 0x7b;
    for (int code = 0; code < largest; ++code) {
      const float low = Float8ToFloat(format, static_cast<uint8_t>(code));
      const float high = Float8ToFloat(format, static_cast<uint8_t>(code + 1));
      const float middle = (low + high) / 2;  // exact in fp32
      ASSERT_EQ(FloatToFloat8(format, middle), code + (code & 1)) << Name(format);
      ASSERT_EQ(FloatToFloat8(format, std::nextafter(middle, low)), code);
      ASSERT_EQ(FloatToFloat8(format, std::nextafter(middle, high)), code + 1);
      ASSERT_EQ(FloatToFloat8(format, -middle), (code + (code & 1)) | 0x80);
    }
  }
}

TEST(Float8Test, LargeValuesSaturateAndNonFiniteOnesBecomeNan) {
  for (Float8Format format : {kE4M3, kE5M2}) {
    const float largest = Float8Max(format);
    for (float beyond : {largest, std::nextafter(largest, kInfinity), 2 * largest, 3e38f}) {
      EXPECT_EQ(Float8ToFloat(format, FloatToFloat8(format, beyond)), largest);
      EXPECT_EQ(Float8ToFloat(format, FloatToFloat8(format, -beyond)), -largest);
    }
    for (float lost : {kInfinity, -kInfinity, std::nanf(""), -std::nanf("")})
      EXPECT_TRUE(std::isnan(Float8ToFloat(format, FloatToFloat8(format, lost))));
  }
}

// The codes are those of ml_dtypes 0.6 (float8_e4m3fn, float8_e5m2).
TEST(Float8Test, CodesAreThoseOfTheReference) {
  struct Golden {
    float value;
    uint8_t e4m3, e5m2;
  };
  constexpr Golden kGoldens[] = {
      {0x1.427a32p-13f, 0x00, 0x09},  {0x1.31ea5ap-14f, 0x00, 0x05}, {-0x1.18b798p-12f, 0x80, 0x8c},
      {-0x1.c7fba8p-3f, 0xa6, 0xb3},  {-0x1.d19538p+6f, 0xef, 0xd7}, {-0x1.fbb918p-4f, 0xa0, 0xb0},
      {0x1.ecb246p-1f, 0x37, 0x3c},   {0x1.571858p+7f, 0x73, 0x59},  {-0x1.f804fcp+3f, 0xd8, 0xcc},
      {-0x1.3daee2p+0f, 0xba, 0xbd},  {0x1.f59928p-5f, 0x18, 0x2c},  {0x1.6d73cap-4f, 0x1b, 0x2e},
      {0x1.afc6dap-11f, 0x00, 0x13},  {-0x1.dc664ep-3f, 0xa7, 0xb3}, {-0x1.df430ap-11f, 0x80, 0x93},
      {0x1.63fec8p-8f, 0x03, 0x1e},   {-0x1.581e72p+8f, 0xfb, 0xdd}, {-0x1.d4993ap-14f, 0x80, 0x87},
      {-0x1.e6b688p-10f, 0x81, 0x98}, {-0x1.4a1f26p-8f, 0x83, 0x9d}, {-0x1.b8p+8f, 0xfe, 0xdf},
      {-0x1.e17776p-1f, 0xb7, 0xbc},  {-0x1.44776p+6f, 0xea, 0xd5},  {0x1.15c652p-10f, 0x01, 0x14}};
  for (const Golden& golden : kGoldens) {
    EXPECT_EQ(FloatToFloat8(kE4M3, golden.value), golden.e4m3) << golden.value;
    EXPECT_EQ(FloatToFloat8(kE5M2, golden.value), golden.e5m2) << golden.value;
  }
}

TEST(Float8Test, TheScaleTakesTheLargestToTheFormatsLargest) {
  EXPECT_EQ(Float8Scale(kE4M3, 448), 1);
  EXPECT_EQ(Float8Scale(kE4M3, 3.5f), 128);
  EXPECT_EQ(Float8Scale(kE5M2, 3.5f), 16384);
  for (float amax : {1e-30f, 0.3f, 7.7f, 3e38f})
    EXPECT_EQ(FloatToFloat8(kE4M3, amax * Float8Scale(kE4M3, amax)), 0x7e) << amax;
}

TEST(Float8Test, TheScaleIsFiniteWhateverTheTensorHolds) {
  for (Float8Format format : {kE4M3, kE5M2}) {
    EXPECT_EQ(Float8Scale(format, 0), 1);
    EXPECT_EQ(Float8Scale(format, kInfinity), 1);
    EXPECT_EQ(Float8Scale(format, std::nanf("")), 1);
    EXPECT_EQ(Float8Scale(format, 1e-37f), std::numeric_limits<float>::max());
    EXPECT_EQ(Float8Scale(format, std::numeric_limits<float>::denorm_min()),
              std::numeric_limits<float>::max());
  }
}

}  // namespace
}  // namespace megatron
