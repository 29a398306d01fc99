#include "megatron/base/median.h"

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

namespace megatron {
namespace {

TEST(MedianTest, IsTheMiddleInAscendingOrder) {
  EXPECT_EQ(Median(std::vector<int64_t>{7}), 7);
  EXPECT_EQ(Median(std::vector<double>{9.5, -1, 3}), 3);
  EXPECT_EQ(LowerMedian(std::vector<double>{9.5, -1, 3}), 3);
}

TEST(MedianTest, OfTwoInTheMiddleEachTakesItsOwn) {
  const std::vector<int64_t> values = {40, 10, 30, 20};
  EXPECT_EQ(Median(values), 30);
  EXPECT_EQ(LowerMedian(values), 20);
}

}  // namespace
}  // namespace megatron
