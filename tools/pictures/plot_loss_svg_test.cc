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
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(LossPlotTest, DrawsEachPointWhereItBelongs) {
  LossPlotOptions options;
  options.width = 72 + 100 + 24;
  options.height = 48 + 108 + 56;  // 100 pixels and the margins of 4 % above and below
  const std::string svg = LossPlotSvg({{"", {{0, 2}, {50, 1}, {100, 0}}, {}}}, options);
  EXPECT_THAT(svg, HasSubstr("d=\"M72 52l50 50l50 50\""));
}

TEST(LossPlotTest, ShowsTitleRunsAndBothLosses) {
  LossPlotOptions options;
  options.title = "a < b & c";
  const std::string svg = LossPlotSvg(
      {{"first", {{1, 3}, {2, 2}}, {{2, 2.5}}}, {"second", {{1, 4}, {2, 3}}, {}}}, options);
  EXPECT_THAT(svg, AllOf(HasSubstr(">a &lt; b &amp; c</text>"), HasSubstr(">first, training<"),
                         HasSubstr(">first, validation<"), HasSubstr(">second, training<"),
                         Not(HasSubstr(">second, validation<")), HasSubstr("line c0"),
                         HasSubstr("line c1")));
  EXPECT_THAT(svg, Not(HasSubstr("<script")));
  EXPECT_THAT(LossPlotHtml({}, options),
              AllOf(HasSubstr("<!DOCTYPE html>"), HasSubstr("<svg"), HasSubstr("no data")));
}

TEST(LossPlotTest, AMeanIsOfIterationsThatAllRunsHave) {
  const LossCurve mean = MeanOf({{"a", {{1, 3}, {2, 2}, {3, 1}}, {{2, 5}}},
                                 {"b", {{2, 4}, {3, 2}, {4, 1}}, {{2, 6}, {4, 1}}}});
  EXPECT_EQ(mean.name, "a, b");
  EXPECT_THAT(mean.train, ElementsAre(Pair(2, 3), Pair(3, 1.5)));
  EXPECT_THAT(mean.validation, ElementsAre(Pair(2, 5.5)));
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
