#include "tools/pictures/plot_loss_svg.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::testing::AllOf;
using ::testing::DoubleEq;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pointwise;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

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

TEST(LossPlotTest, DrawsEachPointWhereItBelongs) {
  LossPlotOptions options;
  options.width = 72 + 100 + 24;
  options.height = 48 + 108 + 56;  // 100 pixels and the margins of 4 % above and below
  const std::string svg = LossPlotSvg({{"", {{0, 2}, {50, 1}, {100, 0}}, {}}}, options);
  EXPECT_THAT(svg, HasSubstr("points=\"72.0,52.0 122.0,102.0 172.0,152.0 \""));
}

TEST(LossPlotTest, ShowsTitleRunsAndBothLosses) {
  LossPlotOptions options;
  options.title = "a < b & c";
  const std::string svg = LossPlotSvg(
      {{"first", {{1, 3}, {2, 2}}, {{2, 2.5}}}, {"second", {{1, 4}, {2, 3}}, {}}}, options);
  EXPECT_THAT(svg, AllOf(HasSubstr(">a &lt; b &amp; c</text>"), HasSubstr(">first, training<"),
                         HasSubstr(">first, validation<"), HasSubstr(">second, training<"),
                         Not(HasSubstr(">second, validation<")), HasSubstr("#0072B2"),
                         HasSubstr("#D55E00")));
  EXPECT_THAT(svg, Not(HasSubstr("<script")));
  EXPECT_THAT(LossPlotHtml({}, options),
              AllOf(HasSubstr("<!DOCTYPE html>"), HasSubstr("<svg"), HasSubstr("no data")));
}

TEST(LossPlotTest, PassesOverWhatCannotBeDrawn) {
  LossPlotOptions options;
  options.log_x = options.log_y = true;
  const std::string svg = LossPlotSvg(
      {{"", {{0, 1}, {1, kNan}, {2, -1}, {3, 0}, {4, 2}, {5, 3}}, {{6, kNan}}}}, options);
  EXPECT_THAT(svg,
              AllOf(Not(HasSubstr("nan")), Not(HasSubstr("inf")), Not(HasSubstr("validation"))));
}

TEST(LossPlotTest, StaysSmallForLongRuns) {
  LossCurve curve;
  for (int i = 1; i <= 1000000; ++i) curve.train.emplace_back(i, 3 + std::sin(i));
  EXPECT_LT(LossPlotSvg({curve}, {}).size(), 100000);
}

TEST(LossPlotTest, DrawsASinglePoint) {
  EXPECT_THAT(LossPlotSvg({{"", {{1, 2}}, {}}}, {}), Not(HasSubstr("nan")));
}

}  // namespace
}  // namespace megatron
