#include "tools/watch/braille.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron::watch {
namespace {

using ::testing::ElementsAre;

PlotExtent Extent(double low, double high) {
  PlotExtent extent;
  extent.Add(low);
  extent.Add(high);
  return extent;
}

TEST(BrailleTest, ALineFallsFromTheFirstDotToTheLast) {
  const PlotPoints points = {{0, 3}, {1, 2}, {2, 1}, {3, 0}};
  EXPECT_THAT(BrailleCurve(points, Extent(0, 3), Extent(0, 3), 2, 1), ElementsAre("⠑⢄"));
}

TEST(BrailleTest, PointsOfOneColumnAreJoined) {
  EXPECT_THAT(BrailleCurve({{0, 0}, {0, 7}}, Extent(0, 1), Extent(0, 7), 1, 2),
              ElementsAre("⡇", "⡇"));
}

TEST(BrailleTest, AConstantLiesInTheMiddle) {
  EXPECT_THAT(BrailleCurve({{0, 5}, {1, 5}}, Extent(0, 1), Extent(5, 5), 1, 1), ElementsAre("⠒"));
}

TEST(BrailleTest, WithoutPointsThereAreBlanks) {
  EXPECT_THAT(BrailleCurve({}, Extent(0, 1), Extent(0, 1), 3, 1), ElementsAre("   "));
}

}  // namespace
}  // namespace megatron::watch
