#include "tools/pictures/plot_curve.h"

#include <cmath>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

PlotAxis AxisOf(double low, double high, double first_pixel, double last_pixel) {
  PlotExtent extent;
  extent.Add(low);
  extent.Add(high);
  return PlotAxis(extent, /*log=*/false, first_pixel, last_pixel);
}

PlotPoints Wave(int count) {
  PlotPoints points;
  for (int i = 0; i < count; ++i) points.emplace_back(i, 5 + std::sin(1.7 * i));
  return points;
}

TEST(PlotCurveTest, PointsThatNoScaleCanPlaceAreLeftOut) {
  const double infinity = std::numeric_limits<double>::infinity();
  const PlotPoints points = {{0, 1},         {1, std::nan("")}, {2, infinity},
                             {3, -infinity}, {4, 1e300},        {5, -1}};
  EXPECT_THAT(DrawablePoints(points, false, false), ElementsAre(Pair(0, 1), Pair(5, -1)));
  EXPECT_THAT(DrawablePoints(points, true, false), ElementsAre(Pair(5, -1)));
  EXPECT_THAT(DrawablePoints(points, false, true), ElementsAre(Pair(0, 1)));
}

TEST(PlotCurveTest, ThinningKeepsTheLowestAndTheHighestPointOfAColumn) {
  PlotPoints points;
  for (int i = 0; i < 1000; ++i) points.emplace_back(i, i == 123 ? 9 : i == 777 ? -9 : 0);
  const PlotPoints thinned = ThinnedPoints(points, AxisOf(0, 1000, 0, 10));
  EXPECT_LE(thinned.size(), 20);
  EXPECT_THAT(thinned, testing::Contains(Pair(123, 9)));
  EXPECT_THAT(thinned, testing::Contains(Pair(777, -9)));
}

TEST(PlotCurveTest, SamplingTakesOnePointOfAColumn) {
  EXPECT_EQ(SampledPoints(Wave(1000), AxisOf(0, 1000, 0, 10)).size(), 10);
}

TEST(PlotCurveTest, ACurveThatGoesUpAndDownIsNoisy) {
  EXPECT_TRUE(IsNoisy(Wave(200)));
  EXPECT_FALSE(IsNoisy(Wave(20)));  // too short
  PlotPoints schedule;
  for (int i = 0; i < 200; ++i) schedule.emplace_back(i, i < 20 ? i : 20 - 0.1 * (i - 20));
  EXPECT_FALSE(IsNoisy(schedule));
}

TEST(PlotCurveTest, SmoothingKeepsTheMeanAndTheStart) {
  const PlotPoints smoothed = SmoothedPoints(Wave(1000));
  ASSERT_EQ(smoothed.size(), 1000);
  EXPECT_EQ(smoothed[0].second, 5);
  EXPECT_NEAR(smoothed[500].second, 5, 0.1);
}

TEST(PlotCurveTest, FarValuesWantALogarithmicScale) {
  PlotPoints spike = Wave(100);
  EXPECT_FALSE(WantsLogScale(spike));
  spike[40].second = 500;
  EXPECT_TRUE(WantsLogScale(spike));
  spike[41].second = 0;  // has no place on such a scale
  EXPECT_FALSE(WantsLogScale(spike));
  EXPECT_FALSE(WantsLogScale({}));
}

TEST(PlotCurveTest, APathIsRelativeAndDoesNotDrift) {
  const PlotAxis axis = AxisOf(0, 10, 0, 10);
  EXPECT_EQ(PlotPath({{1, 2}, {2.5, 1.8}, {3, 1.8}}, axis, axis), "M1 2l1.5-.2l.5 0");
  EXPECT_EQ(PlotPath({{0.04, 0}, {0.08, 0}, {0.12, 0}}, axis, axis), "M0 0l.1 0l0 0");
}

}  // namespace
}  // namespace megatron
