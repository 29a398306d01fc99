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

RotaryOptions Yarn(double factor) {
  RotaryOptions options;
  options.base = 150000;
  options.yarn.factor = factor;
  return options;
}

// Heads of 64 and an original context of 4096, as in gpt-oss, whose context is 32 times longer:
// pairs that turn more than 32 times in it stay, those that turn less than once are stretched.
TEST(RotaryTest, YarnStretchesPairsThatTurnSeldom) {
  RotaryOptions plain = Yarn(0);
  const std::vector<double> before = InverseFrequencies(plain, 64),
                            after = InverseFrequencies(Yarn(32), 64);
  for (size_t pair = 0; pair < before.size(); ++pair) {
    const double turns = 4096 * before[pair] / (2 * M_PI);
    // The range is rounded to whole pairs.
    if (turns > 32 * 1.5) {
      EXPECT_DOUBLE_EQ(after[pair], before[pair]) << pair;
    } else if (turns < 1 / 1.5) {
      EXPECT_DOUBLE_EQ(after[pair], before[pair] / 32) << pair;
    } else {
      EXPECT_LE(after[pair], before[pair]) << pair;
      EXPECT_GE(after[pair], before[pair] / 32) << pair;
    }
  }
  RotaryOptions exact = Yarn(32);
  exact.yarn.round_range = false;
  const std::vector<double> blended = InverseFrequencies(exact, 64);
  // The ends of the range, 8.09 and 17.40, as Hugging Face's transformers computes them.
  EXPECT_DOUBLE_EQ(blended[8], before[8]);
  EXPECT_LT(blended[9], before[9]);
  EXPECT_GT(blended[17], before[17] / 32);
  EXPECT_DOUBLE_EQ(blended[18], before[18] / 32);
}

TEST(RotaryTest, YarnMultipliesRotatedVectors) {
  EXPECT_DOUBLE_EQ(RotaryMagnitude(Yarn(32)), 1 + 0.1 * std::log(32));
  RotaryOptions equal = Yarn(40);
  equal.yarn.mscale_all_dim = equal.yarn.mscale;
  EXPECT_DOUBLE_EQ(RotaryMagnitude(equal), 1);
  RotaryOptions other = equal;
  other.yarn.mscale = 0.5;
  EXPECT_DOUBLE_EQ(RotaryMagnitude(other), (1 + 0.05 * std::log(40)) / (1 + 0.1 * std::log(40)));
  EXPECT_EQ(RotaryMagnitude(RotaryOptions()), 1);
  const RotaryTables tables(Yarn(32), 4, 3, {}, nullptr);
  EXPECT_FLOAT_EQ(tables.cos_SP().data<float>()[0], 1 + 0.1 * std::log(32));
}

TEST(RotaryTest, LongRopeStretchesEachPairByItsFactor) {
  RotaryOptions options;
  const std::vector<double> before = InverseFrequencies(options, 8);
  options.longrope.long_factors = {1, 2, 30, 64.5};
  options.longrope.short_factors = {1, 1.05, 1.5, 4};
  options.longrope.magnitude = 1.19;
  for (const bool is_long : {false, true}) {
    options.longrope.is_long = is_long;
    const std::vector<double>& factors =
        is_long ? options.longrope.long_factors : options.longrope.short_factors;
    const std::vector<double> after = InverseFrequencies(options, 8);
    for (size_t pair = 0; pair < before.size(); ++pair)
      EXPECT_DOUBLE_EQ(after[pair], before[pair] / factors[pair]) << pair;
  }
  EXPECT_EQ(RotaryMagnitude(options), 1.19);
  const RotaryTables tables(options, 8, 3, {}, nullptr);
  EXPECT_FLOAT_EQ(tables.cos_SP().data<float>()[0], 1.19f);
  options.longrope.long_factors.pop_back();
  EXPECT_DEATH(InverseFrequencies(options, 8), "factors of LongRoPE");
}

TEST(RotaryTest, LayersWithAWindowMayHaveTablesOfTheirOwn) {
  RotaryOptions options = Yarn(32);
  EXPECT_EQ(RotaryTables(options, 4, 3, {}, nullptr).cos_SP(true).shape(), Shape({3, 2}));
  options.local_base = 100;
  RotaryOptions local;
  local.base = 100;
  const RotaryTables both(options, 4, 3, {}, nullptr), alone(local, 4, 3, {}, nullptr),
      all(Yarn(32), 4, 3, {}, nullptr);
  for (int i = 0; i < 3 * 2; ++i) {
    EXPECT_EQ(both.sin_SP(true).data<float>()[i], alone.sin_SP().data<float>()[i]);
    EXPECT_EQ(both.cos_SP(true).data<float>()[i], alone.cos_SP().data<float>()[i]);
    EXPECT_EQ(both.sin_SP().data<float>()[i], all.sin_SP().data<float>()[i]);
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
