#include "megatron/layers/moe/quantile_bias.h"

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

namespace megatron {
namespace {

TEST(QuantileBiasTest, EachExpertGetsItsShareOfTheTokens) {
  // Four bins between -1 and 1. Of 8 tokens with one choice each, two experts are to get 4.
  std::vector<float> bias = {0, 0};
  FindQuantileBiases({1, 1, 4, 2, /**/ 8, 0, 0, 0}, 1, absl::MakeSpan(bias));
  // Half of the third bin, 0.25, and half of the first, -0.75.
  EXPECT_FLOAT_EQ(bias[0], 0.5f);
  EXPECT_FLOAT_EQ(bias[1], -0.5f);
}

TEST(QuantileBiasTest, BinsFollowTheBiasesThatTokensWereRoutedWith) {
  // Four bins between -1.5 and 2.5.
  std::vector<float> bias = {1.5f, -0.5f};
  FindQuantileBiases({0, 0, 4, 4, /**/ 2, 4, 2, 0}, 1, absl::MakeSpan(bias));
  // The ends of the third bin, 1.5, and the middle of the second, 0.
  EXPECT_FLOAT_EQ(bias[0], 0.75f);
  EXPECT_FLOAT_EQ(bias[1], -0.75f);
}

TEST(QuantileBiasTest, WithoutTokensNothingChanges) {
  std::vector<float> bias = {0.5f, -0.5f};
  FindQuantileBiases({0, 0, 0, 0}, 1, absl::MakeSpan(bias));
  EXPECT_EQ(bias, (std::vector<float>{0.5f, -0.5f}));
}

}  // namespace
}  // namespace megatron
