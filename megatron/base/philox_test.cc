#include "megatron/base/philox.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "gtest/gtest.h"

namespace megatron {
namespace {

void ExpectBlock(PhiloxKey key, PhiloxBlock counter, PhiloxBlock expected) {
  const PhiloxBlock got = Philox(key, counter);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(got.word[i], expected.word[i]) << "word " << i;
}

// The known answers were published with Random123 by the authors.
TEST(PhiloxTest, KnownAnswersOfTheAuthorsAreReproduced) {
  ExpectBlock({0, 0}, {{0, 0, 0, 0}}, {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}});
  const uint32_t ones = 0xffffffff;
  ExpectBlock({ones, ones}, {{ones, ones, ones, ones}},
              {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}});
  ExpectBlock({0xa4093822, 0x299f31d0}, {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}},
              {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}});
}

TEST(PhiloxTest, NormalDeviatesAgreeWithLibm) {
  for (uint32_t i = 0; i < 20000; ++i) {
    const PhiloxBlock words = Philox({1, 2}, {{i, 0, 0, 0}});
    float x, y;
    BoxMuller(words.word[0], words.word[1], &x, &y);
    const double u = UniformOpenZero(words.word[0]), t = UniformOpenZero(words.word[1]);
    const double radius = std::sqrt(-2.0 * std::log(u));
    ASSERT_NEAR(x, radius * std::cos(2 * M_PI * t), 2e-6);
    ASSERT_NEAR(y, radius * std::sin(2 * M_PI * t), 2e-6);
  }
}

TEST(PhiloxTest, ExtremeWordsGiveFiniteDeviates) {
  for (uint32_t first : {0u, 0xffu, 0x100u, 0xffffffffu}) {
    for (uint32_t second : {0u, 0x40000000u, 0x80000000u, 0xffffffffu}) {
      float x, y;
      BoxMuller(first, second, &x, &y);
      EXPECT_TRUE(std::isfinite(x) && std::isfinite(y)) << first << " " << second;
    }
  }
}

TEST(PhiloxTest, MomentsAreThoseOfTheNormalDistribution) {
  std::vector<float> values(1 << 20);
  FillNormal(DeriveKey(1234, kPhiloxInit, 7, 0), 0, values.size(), values.data());
  double sum = 0, squares = 0, fourth = 0;
  for (double v : values) {
    sum += v;
    squares += v * v;
    fourth += v * v * v * v;
  }
  EXPECT_NEAR(sum / values.size(), 0, 4e-3);
  EXPECT_NEAR(squares / values.size(), 1, 6e-3);
  EXPECT_NEAR(fourth / values.size(), 3, 5e-2);
}

TEST(PhiloxTest, APieceOfAStreamEqualsThatPartOfTheWhole) {
  const PhiloxKey key = DeriveKey(42, kPhiloxInit, 1, 0);
  std::vector<float> whole(103), piece(50);
  FillNormal(key, 0, whole.size(), whole.data());
  for (int64_t begin : {0, 1, 2, 3, 4, 53}) {
    FillNormal(key, begin, piece.size(), piece.data());
    EXPECT_EQ(std::memcmp(piece.data(), whole.data() + begin, piece.size() * sizeof(float)), 0)
        << begin;
  }
}

// A change of these bits would change the initial weights of every model for the same seed.
TEST(PhiloxTest, BitsOfNormalDeviatesNeverChange) {
  float values[4];
  FillNormal(DeriveKey(1234, kPhiloxInit, 0, 0), 0, 4, values);
  uint32_t bits[4];
  std::memcpy(bits, values, sizeof(bits));
  EXPECT_EQ(bits[0], 0x3f8339cfu);
  EXPECT_EQ(bits[1], 0xbd725d90u);
  EXPECT_EQ(bits[2], 0xbfdcfaa4u);
  EXPECT_EQ(bits[3], 0xbeaa1405u);
}

}  // namespace
}  // namespace megatron
