#include "megatron/federated/discrete_gaussian.h"

#include <cmath>
#include <cstdlib>
#include <map>
#include <vector>

#include "gtest/gtest.h"

namespace megatron {
namespace {

Key Seed(uint8_t number) {
  Key seed{};
  seed[0] = number;
  return seed;
}

TEST(DiscreteGaussianTest, NumbersHaveTheirProbabilities) {
  constexpr int kDraws = 200000;
  for (const uint64_t variance : {1, 2, 3, 10}) {
    RandomWords random(Seed(1));
    std::map<int64_t, int> counts;
    for (int i = 0; i < kDraws; ++i) ++counts[DiscreteGaussian(variance, &random)];
    double total = 0;
    for (int n = -60; n <= 60; ++n) total += std::exp(-0.5 * n * n / variance);
    for (int n = -6; n <= 6; ++n) {
      const double expected = kDraws * std::exp(-0.5 * n * n / variance) / total;
      // Five standard deviations of a count.
      EXPECT_NEAR(counts[n], expected, 5 * std::sqrt(expected) + 1) << variance << " " << n;
    }
  }
}

TEST(DiscreteGaussianTest, MomentsOfLargeVariancesAreTheGaussians) {
  constexpr int kDraws = 20000;
  for (const int bits : {20, 46, 51, 56}) {
    const uint64_t variance = uint64_t{1} << bits;
    RandomWords random(Seed(2));
    double sum = 0, squares = 0, fourth = 0;
    int within = 0;
    for (int i = 0; i < kDraws; ++i) {
      const double z = DiscreteGaussian(variance, &random) / std::sqrt(variance);
      sum += z;
      squares += z * z;
      fourth += z * z * z * z;
      within += std::fabs(z) < 1;
    }
    // Five standard deviations of each mean.
    const double root = std::sqrt(kDraws);
    EXPECT_NEAR(sum / kDraws, 0, 5 / root) << bits;
    EXPECT_NEAR(squares / kDraws, 1, 5 * std::sqrt(2.0) / root) << bits;
    EXPECT_NEAR(fourth / kDraws, 3, 5 * std::sqrt(96.0) / root) << bits;
    EXPECT_NEAR(within / double{kDraws}, 0.6826894921, 5 * 0.466 / root) << bits;
  }
}

TEST(DiscreteGaussianTest, ASeedGivesTheSameNumbersAndAnotherOthers) {
  RandomWords a(Seed(3)), same(Seed(3)), other(Seed(4)), unseeded, unseeded_too;
  std::vector<int64_t> from_a, from_same, from_other, from_unseeded, from_unseeded_too;
  for (int i = 0; i < 100; ++i) {
    const uint64_t variance = uint64_t{1} << 40;
    from_a.push_back(DiscreteGaussian(variance, &a));
    from_same.push_back(DiscreteGaussian(variance, &same));
    from_other.push_back(DiscreteGaussian(variance, &other));
    from_unseeded.push_back(DiscreteGaussian(variance, &unseeded));
    from_unseeded_too.push_back(DiscreteGaussian(variance, &unseeded_too));
  }
  EXPECT_EQ(from_a, from_same);
  EXPECT_NE(from_a, from_other);
  EXPECT_NE(from_unseeded, from_unseeded_too);
}

TEST(DiscreteGaussianTest, VarianceIsNeverBelowWhatTheMultiplierAsks) {
  EXPECT_EQ(NoiseVariance(1, 1 << 23), uint64_t{1} << 46);
  EXPECT_EQ(NoiseVariance(32, 1 << 23), kMostNoiseVariance);
  EXPECT_EQ(NoiseVariance(0.5, 3), 3u);  // 2.25, rounded up
}

}  // namespace
}  // namespace megatron
