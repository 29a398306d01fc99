// Draws curves over a common axis, as an SVG picture of its own or as a part of a page.
#ifndef MEGATRON_TOOLS_PICTURES_LINE_CHART_H_
#define MEGATRON_TOOLS_PICTURES_LINE_CHART_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "tools/pictures/picture_style.h"
#include "tools/pictures/plot_curve.h"

namespace megatron {

enum class CurveLook {
  kLine,
  kSmoothed,      // all points in a pale color, and their moving mean over them
  kSmoothedOnly,  // the moving mean alone
  kDots,          // dots joined by a dashed line, for what is measured now and then
};

struct Curve {
  std::string name;   // its words in the legend
  PlotPoints points;  // ascending; points that cannot be placed are passed over
  CurveLook look = CurveLook::kLine;
  int color = 0;  // number of its color, and of its dashes
};

// A place on the axis that all curves share, as a dashed line with its words.
struct ChartMark {
  double x = 0;
  std::string text;
};

struct LineChart {
  PictureFrame frame;
  std::string x_label;
  std::string y_label;
  bool log_x = false;
  bool log_y = false;
  std::vector<Curve> curves;
  std::vector<ChartMark> marks;
};

// Each column of the picture keeps the lowest and the highest point of a curve, so that a long run
// gives a small picture without losing its extremes.
std::string LineChartAlone(const LineChart& chart);
// The same without title and legend, which belong to the page.
std::string LineChartInPage(const LineChart& chart, absl::string_view id);

// Returns a small picture of how a curve of this look and color is drawn, for a legend.
std::string CurveKey(CurveLook look, int color);

}  // namespace megatron

#endif  // MEGATRON_TOOLS_PICTURES_LINE_CHART_H_
