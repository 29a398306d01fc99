#include "megatron/layers/rotary.h"

#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;

TEST(RotaryTest, FrequenciesFallGeometrically) {
  EXPECT_THAT(
      InverseFrequencies({}, 8),
      ElementsAre(1.0, DoubleNear(0.1, 1e-12), DoubleNear(0.01, 1e-12), DoubleNear(0.001, 1e-12)));
}

TEST(RotaryTest, APercentageRotatesTheFirstChannelsOnly) {
  RotaryOptions options;
  options.percent = 0.5;
  EXPECT_THAT(InverseFrequencies(options, 8), ElementsAre(1.0, DoubleNear(0.01, 1e-12)));
}

TEST(RotaryTest, InterpolationDividesPositions) {
  RotaryOptions options;
  options.interpolation_factor = 4;
  EXPECT_THAT(InverseFrequencies(options, 4), ElementsAre(0.25, DoubleNear(0.0025, 1e-12)));
}

// Llama 3.1 with base 500000 and heads of 128: short wavelengths stay, those beyond the original
// context of 8192 are stretched eightfold.
TEST(RotaryTest, ScalingStretchesLongWavelengthsOnly) {
  RotaryOptions plain;
  plain.base = 500000;
  RotaryOptions scaled = plain;
  scaled.scaling_factor = 8;
  const std::vector<double> before = InverseFrequencies(plain, 128),
                            after = InverseFrequencies(scaled, 128);
  for (size_t pair = 0; pair < before.size(); ++pair) {
    const double wavelength = 2 * M_PI / before[pair];
    if (wavelength < 8192.0 / 4) {
      EXPECT_EQ(after[pair], before[pair]);
    } else if (wavelength > 8192) {
      EXPECT_EQ(after[pair], before[pair] / 8);
    } else {
      EXPECT_GT(after[pair], before[pair] / 8);
      EXPECT_LT(after[pair], before[pair]);
    }
  }
}

TEST(RotaryTest, TablesHoldCosineAndSineOfPositionTimesFrequency) {
  const RotaryTables tables({}, 4, 3, {}, nullptr);
  for (int position = 0; position < 3; ++position) {
    for (int pair = 0; pair < 2; ++pair) {
      const double angle = position * std::pow(0.01, pair);
      EXPECT_NEAR(tables.cos_SP().data<float>()[position * 2 + pair], std::cos(angle), 1e-7);
      EXPECT_NEAR(tables.sin_SP().data<float>()[position * 2 + pair], std::sin(angle), 1e-7);
    }
  }
}

}  // namespace
}  // namespace megatron
