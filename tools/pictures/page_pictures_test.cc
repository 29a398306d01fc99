#include <cmath>
#include <limits>
#include <string>

#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/pictures/heat_map.h"
#include "tools/pictures/lane_chart.h"
#include "tools/pictures/line_chart.h"
#include "tools/pictures/stack_chart.h"

namespace megatron {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

int Count(absl::string_view text, absl::string_view part) {
  int count = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++count;
  return count;
}

LineChart LossChart() {
  LineChart chart;
  chart.frame.title = "lm <loss>";
  chart.frame.description = "It falls & stays.";
  chart.curves = {{"training", {{1, 4}, {2, 2}, {3, 1}}, CurveLook::kLine, 0},
                  {"validation", {{2, 2.5}}, CurveLook::kDots, 1}};
  chart.marks = {{2, "start 2"}, {99, "beyond the curve"}};
  return chart;
}

TEST(LineChartTest, APictureInAPageHasItsWords) {
  const std::string svg = LineChartInPage(LossChart(), "c1");
  EXPECT_THAT(svg, AllOf(HasSubstr("role=\"img\""), HasSubstr("aria-labelledby=\"c1-title\""),
                         HasSubstr("<title id=\"c1-title\">lm &lt;loss&gt;</title>"),
                         HasSubstr("<desc id=\"c1-desc\">It falls &amp; stays.</desc>")));
  EXPECT_THAT(svg, HasSubstr("<title>validation: 2.5 at 2</title>"));
  EXPECT_THAT(svg, AllOf(HasSubstr("start 2"), Not(HasSubstr("beyond the curve"))));
  EXPECT_THAT(svg, Not(HasSubstr("<style>")));
}

TEST(LineChartTest, APictureAloneHasItsColors) {
  const std::string svg = LineChartAlone(LossChart());
  EXPECT_THAT(svg, AllOf(HasSubstr("#0072b2"), Not(HasSubstr("var(")), HasSubstr(">training<")));
}

TEST(LineChartTest, CurvesDifferInMoreThanTheirColors) {
  EXPECT_NE(CurveKey(CurveLook::kLine, 1), CurveKey(CurveLook::kDots, 1));
  EXPECT_THAT(CurveKey(CurveLook::kLine, 1), HasSubstr("c1 d1"));
  EXPECT_THAT(CurveKey(CurveLook::kLine, 7), HasSubstr("c1 d1"));
}

TEST(LineChartTest, NothingToDrawIsSaid) {
  LineChart chart;
  chart.curves = {{"", {{1, std::nan("")}}, CurveLook::kLine, 0}};
  EXPECT_THAT(LineChartInPage(chart, "c1"), HasSubstr("no data"));
}

TEST(StackChartTest, PartsLieOnEachOther) {
  StackChart chart;
  chart.frame.width = 56 + 100 + 14;
  chart.frame.height = 10 + 100 + 40;
  chart.edges = {0, 10, 20};
  chart.parts = {{"compute", {0.75, 0.5}, 0}, {"waiting", {0.25, 0.5}, 1}};
  const std::string svg = StackChartInPage(chart, "s1");
  EXPECT_THAT(svg, HasSubstr("class=\"f0\" fill-opacity=\"1.00\" d=\"M56 35l50 0l0 25l50 0l0 50"));
  EXPECT_THAT(svg, HasSubstr("class=\"f1\" fill-opacity=\"1.00\" d=\"M56 10l50 0"));
  EXPECT_THAT(svg, HasSubstr("<title>waiting</title>"));
}

TEST(StackChartTest, ManyPartsHaveOtherLooks) {
  EXPECT_NE(StackKey(0), StackKey(kPictureColors));
  EXPECT_NE(StackKey(0), StackKey(1));
}

LaneBox Box(double begin, double end, int color = 0) {
  LaneBox box;
  box.begin = begin;
  box.end = end;
  box.color = color;
  return box;
}

TEST(LaneChartTest, ABoxLiesWhereItsTimesSay) {
  LaneChart chart;
  chart.frame.width = LaneMargins(2) + 100;
  LaneBox forward = Box(0, 50, 5), wait = Box(20, 30, 3);
  forward.label = "3";
  forward.title = "forward 3";
  wait.inner = true;
  chart.panels = {{"", {{"r0", {forward, wait}}, {"r1", {Box(50, 100, 4)}}}}};
  const std::string svg = LaneChartInPage(chart, "l1");
  EXPECT_THAT(svg, HasSubstr("<title>forward 3</title><rect class=\"f5\" x=\"30.0\" y=\"6\" "
                             "width=\"50.0\" height=\"26\"/><text class=\"inside\""));
  EXPECT_THAT(svg,
              HasSubstr("<rect class=\"f3\" x=\"50.0\" y=\"19\" width=\"10.0\" height=\"13\""));
  EXPECT_THAT(svg, HasSubstr("<rect class=\"f4\" x=\"80.0\" y=\"38\""));
}

TEST(LaneChartTest, OfTooManyBoxesTheLongestStay) {
  LaneChart chart;
  chart.most_boxes = 10;
  chart.panels = {{"", {{"", {}}, {"", {}}}}};
  for (int i = 0; i < 1000; ++i)
    chart.panels[0].lanes[i % 2].boxes.push_back(Box(i, i + (i % 100 == 0 ? 50.0 + i : 0.5)));
  EXPECT_EQ(Count(LaneChartInPage(chart, "l1"), "<g>"), 10);
}

TEST(LaneChartTest, HostileTimesAreLeftOut) {
  LaneChart chart;
  chart.panels = {
      {"", {{"", {Box(std::nan(""), 1), Box(2, 1), Box(0, INFINITY), Box(-1e300, 1)}}}}};
  const std::string svg = LaneChartInPage(chart, "l1");
  EXPECT_EQ(Count(svg, "<g>"), 0);
  EXPECT_THAT(svg, AllOf(Not(HasSubstr("nan")), Not(HasSubstr("inf"))));
}

TEST(LaneChartTest, TheLegendNamesOnlyWhatIsThere) {
  LaneChart chart;
  chart.panels = {{"", {{"r0", {Box(0, 1, 5)}}}}};
  chart.kinds = {{5, "forward"}, {4, "backward"}};
  EXPECT_THAT(LaneChartAlone(chart), AllOf(HasSubstr(">forward<"), Not(HasSubstr(">backward<"))));
}

HeatMap NormsOfLayers() {
  HeatMap map;
  map.frame.title = "grad-norm";
  map.frame.description = "It grows.";
  map.x_label = "iteration";
  map.edges = {0, 100, 200, 300};
  map.rows = {"layer <0>", "layer 1"};
  map.values = {{1, 1, 1000}, {std::nan(""), std::numeric_limits<double>::infinity(), 30}};
  return map;
}

TEST(HeatMapTest, NeighborsOfOneColorAreOneRectangle) {
  HeatMap map = NormsOfLayers();
  const std::string svg = HeatMapInPage(map, "h1");
  EXPECT_THAT(svg, AllOf(HasSubstr(">layer &lt;0&gt;</text>"), HasSubstr(">iteration</text>"),
                         HasSubstr("<title id=\"h1-title\">grad-norm</title>")));
  // The lowest level has two ones and, on a linear scale, the 30.
  EXPECT_EQ(Count(svg, "<path "), 3);
  EXPECT_EQ(Count(svg, "h112.0v"), 3);
  EXPECT_EQ(Count(svg, "h224.0v"), 1);
}

TEST(HeatMapTest, ALogarithmicScaleTellsSmallValuesApart) {
  HeatMap map = NormsOfLayers();
  map.log = true;
  EXPECT_EQ(Count(HeatMapInPage(map, "h1"), "<path "), 4);
  EXPECT_EQ(RangeOf(map).low, 1);
  EXPECT_EQ(RangeOf(map).high, 1000);
  map.values[0][0] = 0;  // has no place on it
  EXPECT_EQ(RangeOf(map).low, 1);
}

TEST(HeatMapTest, EqualAndMissingValuesAreDrawn) {
  HeatMap map = NormsOfLayers();
  map.values = {{2, 2, 2}, {std::nan(""), std::nan(""), std::nan("")}};
  EXPECT_EQ(Count(HeatMapInPage(map, "h1"), "<path "), 1);
  map.values[0] = map.values[1];
  EXPECT_EQ(Count(HeatMapInPage(map, "h1"), "<path "), 0);
}

}  // namespace
}  // namespace megatron
