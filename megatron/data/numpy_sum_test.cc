#include "megatron/data/numpy_sum.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::testing::ElementsAre;

// Returns 1, 1/2, 1/3, ...
std::vector<double> Harmonic(int count) {
  std::vector<double> values;
  for (int i = 1; i <= count; ++i) values.push_back(1.0 / i);
  return values;
}

// The expected sums are numpy's. The order of additions differs below 8 values, up to 128, up to
// 8,192 and above.
TEST(NumpySumTest, SumsHaveTheBitsOfNumpy) {
  EXPECT_EQ(NumpySum({}), 0);
  EXPECT_EQ(NumpySum(Harmonic(7)), 2.5928571428571425);
  EXPECT_EQ(NumpySum(std::vector<double>(10, 0.1)), 1.0);
  EXPECT_EQ(NumpySum(Harmonic(128)), 5.433147092589173);
  EXPECT_EQ(NumpySum(Harmonic(129)), 5.440899030573669);
  EXPECT_EQ(NumpySum(Harmonic(300)), 6.282663880299504);
  EXPECT_EQ(NumpySum(Harmonic(20000)), 10.480728217229329);
}

// 0.7 + 0.2 + 0.1 is 1 - 2^-53.
TEST(NumpySumTest, NormalizingTwiceIsNotNormalizingOnce) {
  std::vector<double> values = {0.7, 0.2, 0.1};
  NumpyNormalize(&values);
  EXPECT_THAT(values, ElementsAre(0.70000000000000007, 0.20000000000000004, 0.10000000000000002));
  NumpyNormalize(&values);
  EXPECT_THAT(values, ElementsAre(0.69999999999999996, 0.19999999999999998, 0.099999999999999992));
}

}  // namespace
}  // namespace megatron
