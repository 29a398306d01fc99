#include "tools/pictures/plot_axis.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::testing::DoubleEq;
using ::testing::ElementsAre;
using ::testing::Pointwise;

TEST(PlotTicksTest, AreRoundNumbers) {
  EXPECT_THAT(PlotTicks(0, 1000, 8, false),
              ElementsAre(0, 100, 200, 300, 400, 500, 600, 700, 800, 900, 1000));
  EXPECT_THAT(PlotTicks(1, 400, 8, false), ElementsAre(50, 100, 150, 200, 250, 300, 350, 400));
  EXPECT_THAT(PlotTicks(1.13, 5.9, 7, false), ElementsAre(1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 5.5));
  EXPECT_THAT(PlotTicks(-1, 1, 5, false), Pointwise(DoubleEq(), {-1.0, -0.5, 0.0, 0.5, 1.0}));
}

TEST(PlotTicksTest, ArePowersOfTenOnALogAxis) {
  EXPECT_THAT(PlotTicks(1, 1e6, 8, true), ElementsAre(1, 10, 100, 1e3, 1e4, 1e5, 1e6));
  EXPECT_THAT(PlotTicks(0.9, 12, 7, true), Pointwise(DoubleEq(), {1.0, 2.0, 5.0, 10.0}));
  EXPECT_GE(PlotTicks(2.1, 4.4, 7, true).size(), 4);
}

TEST(PlotTicksTest, AreFewAndInsideForAnyInterval) {
  for (double low : {1e-9, 0.3, 7.0, 1e5}) {
    for (double extent : {1e-6, 0.01, 3.0, 1e4, 1e12}) {
      for (bool log : {false, true}) {
        const double high = low + low * extent;
        const std::vector<double> ticks = PlotTicks(low, high, 7, log);
        EXPECT_GE(ticks.size(), 2) << low << " " << high << " " << log;
        EXPECT_LE(ticks.size(), 24) << low << " " << high << " " << log;
        for (double tick : ticks) EXPECT_TRUE(tick >= low && tick <= high * (1 + 1e-12)) << tick;
      }
    }
  }
}

TEST(PlotTickLabelTest, IsShort) {
  EXPECT_EQ(PlotTickLabel(0.1 + 0.2), "0.3");
  EXPECT_EQ(PlotTickLabel(1500), "1500");
  EXPECT_EQ(PlotTickLabel(20000), "20k");
  EXPECT_EQ(PlotTickLabel(1500000), "1.5M");
  EXPECT_EQ(PlotTickLabel(-1e-17), "0");
}

TEST(PlotTicksTest, AreFewOnALogAxisOfManyDecades) {
  EXPECT_LE(PlotTicks(1e-90, 1e90, 5, true).size(), 24);
  EXPECT_GE(PlotTicks(1e-90, 1e90, 5, true).size(), 3);
}

TEST(PlotExtentTest, AnIntervalOfOneValueBecomesLonger) {
  for (double value : {0.0, 3.0, -7.0, 1e90}) {
    PlotExtent extent;
    EXPECT_TRUE(extent.empty());
    extent.Add(value);
    extent.Widen(0.04, /*log=*/false);
    EXPECT_LT(extent.low(), value);
    EXPECT_GT(extent.high(), value);
  }
}

TEST(PlotAxisTest, PlacesValuesLinearlyOrByTheirLogarithm) {
  PlotExtent extent;
  extent.Add(1);
  extent.Add(100);
  EXPECT_DOUBLE_EQ(PlotAxis(extent, /*log=*/true, 0, 50).Pixel(10), 25);
  EXPECT_DOUBLE_EQ(PlotAxis(extent, /*log=*/false, 99, 0).Pixel(34), 66);
}

}  // namespace
}  // namespace megatron
