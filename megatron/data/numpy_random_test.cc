#include "megatron/data/numpy_random.h"

#include <cstdint>
#include <numeric>
#include <vector>

#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

// numpy 1.24 printed all expected values.
namespace megatron {
namespace {

using ::testing::ElementsAre;

std::vector<int32_t> Shuffled(uint32_t seed, int count) {
  std::vector<int32_t> values(count);
  std::iota(values.begin(), values.end(), 0);
  NumpyRandomState(seed).Shuffle(absl::MakeSpan(values));
  return values;
}

TEST(NumpyRandomStateTest, WordsAreNumpys) {
  NumpyRandomState random(1234);
  EXPECT_EQ(random.Word(), 822569775u);
  EXPECT_EQ(random.Word(), 2137449171u);
  EXPECT_EQ(random.Word(), 2671936806u);
  EXPECT_EQ(random.Word(), 3512589365u);
}

TEST(NumpyRandomStateTest, RandomSamplesAreNumpys) {
  NumpyRandomState random(1234);
  EXPECT_EQ(random.RandomSample(), .1915194503788923);
  EXPECT_EQ(random.RandomSample(), .6221087710398319);
  EXPECT_EQ(random.RandomSample(), .4377277390071145);
}

TEST(NumpyRandomStateTest, ShuffleIsNumpys) {
  EXPECT_THAT(Shuffled(1234, 10), ElementsAre(7, 2, 9, 1, 0, 8, 4, 5, 6, 3));
  EXPECT_THAT(Shuffled(42, 10), ElementsAre(8, 1, 5, 0, 7, 2, 9, 4, 3, 6));
  EXPECT_THAT(Shuffled(0, 10), ElementsAre(2, 8, 4, 9, 1, 6, 7, 3, 0, 5));
}

TEST(NumpyRandomStateTest, ShufflingFewerThanTwoElementsDrawsNothing) {
  NumpyRandomState random(1234);
  std::vector<int32_t> one = {5};
  random.Shuffle(absl::MakeSpan(one));
  random.Shuffle(absl::Span<int32_t>());
  EXPECT_EQ(random.Word(), 822569775u);
}

TEST(NumpyRandomStateTest, IntegersAreNumpys) {
  NumpyRandomState random(1234);
  std::vector<int64_t> drawn(5);
  for (int64_t& value : drawn) value = random.RandInt(0, 30522);
  EXPECT_THAT(drawn, ElementsAre(27439, 25299, 1318, 23605, 27852));
}

TEST(NumpyRandomStateTest, RangesAbove32BitsDrawTheHighHalfFirst) {
  NumpyRandomState random(5);
  std::vector<int64_t> drawn(4);
  for (int64_t& value : drawn) value = random.RandInt(0, int64_t{1} << 40);
  EXPECT_THAT(drawn, ElementsAre(425438759118, 1030067709629, 989404716150, 622681974857));
}

TEST(NumpyRandomStateTest, AFullRangeOf32BitsDrawsOneWord) {
  NumpyRandomState random(5);
  std::vector<int64_t> drawn(4);
  for (int64_t& value : drawn) value = random.RandInt(0, int64_t{1} << 32);
  EXPECT_THAT(drawn, ElementsAre(953453411, 236996814, 3739766767, 3570525885));
}

TEST(NumpyRandomStateTest, ChoiceIsNumpys) {
  NumpyRandomState random(1234);
  const std::vector<double> p = {6.0 / 11, 3.0 / 11, 2.0 / 11};
  std::vector<size_t> drawn(12);
  for (size_t& value : drawn) value = random.Choice(p);
  EXPECT_THAT(drawn, ElementsAre(0, 1, 0, 1, 1, 0, 0, 1, 2, 2, 0, 0));
  EXPECT_EQ(random.Word(), 2935450949u);
}

TEST(NumpyRandomStateTest, GeometricNumbersAreNumpys) {
  NumpyRandomState random(1234);
  std::vector<int64_t> drawn(12);
  for (int64_t& value : drawn) value = random.Geometric(0.2);
  EXPECT_THAT(drawn, ElementsAre(1, 5, 3, 7, 7, 2, 2, 8, 15, 10, 2, 4));
}

TEST(NumpyRandomStateTest, BernoulliDrawsAreNumpysBinomialOfOne) {
  const auto toss = [](double p) {
    NumpyRandomState random(7);
    std::vector<bool> drawn(16);
    for (size_t i = 0; i < drawn.size(); ++i) drawn[i] = random.Bernoulli(p);
    EXPECT_EQ(random.Word(), 916483116u) << p;
    return drawn;
  };
  EXPECT_THAT(toss(0.5), ElementsAre(0, 1, 0, 1, 1, 1, 1, 0, 0, 0, 1, 1, 0, 0, 0, 1));
  EXPECT_THAT(toss(0.37), ElementsAre(0, 1, 0, 1, 1, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 1));
  EXPECT_THAT(toss(0.1), ElementsAre(0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1));
  EXPECT_THAT(toss(0.9), ElementsAre(1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0));
  EXPECT_THAT(toss(1), ::testing::Each(true));
  EXPECT_THAT(toss(0), ::testing::Each(false));
}

TEST(NumpyGeneratorTest, WordsAreNumpys) {
  NumpyGenerator zero(0);
  EXPECT_EQ(zero.Word(), 11749869230777074271u);
  EXPECT_EQ(zero.Word(), 4976686463289251617u);
  EXPECT_EQ(zero.Word(), 755828109848996024u);
  NumpyGenerator other(123456789);
  EXPECT_EQ(other.Word(), 511209809126027580u);
  EXPECT_EQ(other.Word(), 16725663875132018381u);
}

TEST(NumpyGeneratorTest, RandomSamplesAreNumpys) {
  EXPECT_EQ(NumpyGenerator(0).Random(), .6369616873214543);
}

TEST(NumpyGeneratorTest, IntegersAreNumpys) {
  const auto draw = [](uint32_t seed, int32_t low, int32_t high, int count) {
    NumpyGenerator generator(seed);
    std::vector<int32_t> drawn(count);
    for (int32_t& value : drawn) value = generator.Integer(low, high);
    return drawn;
  };
  EXPECT_THAT(draw(0, 0, 10, 10), ElementsAre(8, 6, 5, 2, 3, 0, 0, 0, 1, 8));
  EXPECT_THAT(draw(42, 0, 10, 10), ElementsAre(0, 7, 6, 4, 4, 8, 0, 6, 2, 0));
  EXPECT_THAT(draw(7, -3, 1000000, 6), ElementsAre(944904, 625094, 684178, 897213, 578291, 775685));
}

}  // namespace
}  // namespace megatron
