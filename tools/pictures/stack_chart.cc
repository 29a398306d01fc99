#include "tools/pictures/stack_chart.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "glog/logging.h"
#include "tools/pictures/markup_text.h"
#include "tools/pictures/plot_axis.h"
#include "tools/pictures/plot_curve.h"

namespace megatron {
namespace {

constexpr int kLeft = 56, kRight = 14, kTop = 10, kBottom = 40;
constexpr int kTicks = 5;

std::string FillOf(int part) {
  return absl::StrFormat("class=\"%s\" fill-opacity=\"%.2f\"", PictureClass('f', part),
                         1.0 / (1 + part / kPictureColors));
}

// Appends (x, y) at both ends of each interval, so that the line has steps.
void AppendSteps(const std::vector<double>& edges, const std::vector<double>& heights,
                 PlotPoints* points) {
  for (size_t i = 0; i < heights.size(); ++i) {
    points->emplace_back(edges[i], heights[i]);
    points->emplace_back(edges[i + 1], heights[i]);
  }
}

void AppendScales(const StackChart& chart, const PlotAxis& x_axis, const PlotAxis& y_axis,
                  std::string* svg) {
  const int right = chart.frame.width - kRight, bottom = chart.frame.height - kBottom;
  absl::StrAppendFormat(svg,
                        "<rect class=\"frame\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"/>\n",
                        kLeft, kTop, right - kLeft, bottom - kTop);
  for (double tick : x_axis.Ticks(kTicks)) {
    absl::StrAppendFormat(svg, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>\n",
                          x_axis.Pixel(tick), bottom + 17, PlotTickLabel(tick));
  }
  for (double tick : y_axis.Ticks(kTicks)) {
    absl::StrAppendFormat(svg, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n",
                          kLeft - 7, y_axis.Pixel(tick) + 4, PlotTickLabel(tick));
  }
  absl::StrAppendFormat(svg, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">%s</text>\n",
                        (kLeft + right) / 2, bottom + 35, MarkupText(chart.x_label));
  absl::StrAppendFormat(
      svg, "<text transform=\"translate(13 %d) rotate(-90)\" text-anchor=\"middle\">%s</text>\n",
      (kTop + bottom) / 2, MarkupText(chart.y_label));
}

}  // namespace

std::string StackChartInPage(const StackChart& chart, absl::string_view id) {
  CHECK_GE(chart.edges.size(), 2u);
  const size_t intervals = chart.edges.size() - 1;
  PlotExtent x, y;
  x.Add(chart.edges.front());
  x.Add(chart.edges.back());
  y.Add(0);
  std::vector<double> below(intervals, 0), totals(intervals, 0);
  for (const StackedPart& part : chart.parts) {
    CHECK_EQ(part.values.size(), intervals);
    for (size_t i = 0; i < intervals; ++i) totals[i] += part.values[i];
  }
  for (double total : totals) y.Add(total);
  if (y.low() == y.high()) y.Add(1);
  const PlotAxis x_axis(x, false, kLeft, chart.frame.width - kRight);
  const PlotAxis y_axis(y, false, chart.frame.height - kBottom, kTop);
  std::string svg = BeginPictureInPage(chart.frame, id);
  for (size_t number = 0; number < chart.parts.size(); ++number) {
    std::vector<double> above = below;
    for (size_t i = 0; i < intervals; ++i) above[i] += chart.parts[number].values[i];
    PlotPoints outline, lower;
    AppendSteps(chart.edges, above, &outline);
    AppendSteps(chart.edges, below, &lower);
    outline.insert(outline.end(), lower.rbegin(), lower.rend());
    absl::StrAppend(&svg, "<path ", FillOf(chart.parts[number].color), " d=\"",
                    PlotPath(outline, x_axis, y_axis), "z\"><title>",
                    MarkupText(chart.parts[number].name), "</title></path>\n");
    below = std::move(above);
  }
  AppendScales(chart, x_axis, y_axis, &svg);
  return svg + kEndPicture;
}

std::string StackKey(int part) {
  return absl::StrCat(
      "<svg class=\"key\" width=\"14\" height=\"14\" aria-hidden=\"true\"><rect width=\"14\" "
      "height=\"14\" ",
      FillOf(part), "/></svg>");
}

}  // namespace megatron
