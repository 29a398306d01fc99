#include "megatron/tensor/dtype.h"

#include <cmath>
#include <limits>

#include "gtest/gtest.h"

namespace megatron {
namespace {

TEST(DTypeTest, NamesRoundTrip) {
  for (int i = 0; i <= 6; ++i) {
    const DType dtype = static_cast<DType>(i);
    DType back;
    ASSERT_TRUE(FromName(Name(dtype), &back));
    EXPECT_EQ(back, dtype);
  }
  DType unused;
  EXPECT_FALSE(FromName("fp8", &unused));
}

TEST(DTypeTest, EverySixteenBitFloatSurvivesARoundTrip) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const BFloat16 bf16{static_cast<uint16_t>(bits)};
    const Float16 fp16{static_cast<uint16_t>(bits)};
    if (!std::isnan(ToFloat(bf16))) {
      ASSERT_EQ(ToBFloat16(ToFloat(bf16)).bits, bits);
    }
    if (std::isnan(ToFloat(fp16))) {
      ASSERT_TRUE(std::isnan(ToFloat(ToFloat16(ToFloat(fp16)))));
    } else {
      ASSERT_EQ(ToFloat16(ToFloat(fp16)).bits, bits);
    }
  }
}

// A value between two neighbours becomes the nearer one, and in the middle the even one.
TEST(DTypeTest, RoundsToNearestEven) {
  for (uint32_t bits = 0; bits < 0x7bff; ++bits) {
    const float low = ToFloat(Float16{static_cast<uint16_t>(bits)});
    const float high = ToFloat(Float16{static_cast<uint16_t>(bits + 1)});
    const float middle = low + (high - low) / 2;  // exact in fp32
    ASSERT_EQ(ToFloat16(middle).bits, bits + (bits & 1)) << bits;
    ASSERT_EQ(ToFloat16(std::nextafter(middle, low)).bits, bits);
    ASSERT_EQ(ToFloat16(std::nextafter(middle, high)).bits, bits + 1);
    ASSERT_EQ(ToFloat16(-middle).bits, (bits + (bits & 1)) | 0x8000u);
  }
  EXPECT_EQ(ToBFloat16(1.00390625f).bits, 0x3f80);  // halfway to the next: even stays
  EXPECT_EQ(ToBFloat16(1.01171875f).bits, 0x3f82);
}

TEST(DTypeTest, OverflowGivesInfinityAndNanStaysNan) {
  EXPECT_EQ(ToFloat16(65504.0f).bits, 0x7bff);
  EXPECT_EQ(ToFloat16(65519.0f).bits, 0x7bff);
  EXPECT_EQ(ToFloat16(65520.0f).bits, 0x7c00);
  EXPECT_EQ(ToFloat16(-1e9f).bits, 0xfc00);
  EXPECT_TRUE(std::isinf(ToFloat(ToBFloat16(std::numeric_limits<float>::max()))));
  EXPECT_TRUE(std::isnan(ToFloat(ToBFloat16(std::nanf("")))));
}

}  // namespace
}  // namespace megatron
