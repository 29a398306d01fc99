#include "tools/pictures/line_chart.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/pictures/markup_text.h"

namespace megatron {
namespace {

constexpr double kMargin = 0.04;  // share of the values' extent left free above and below

// The left margin is wider if the ticks need it.
struct Margins {
  int left, right, top, bottom;
};
constexpr Margins kAlone = {72, 24, 48, 56};
constexpr Margins kInPage = {48, 14, 10, 40};

// Ticks that lie closer than this, in pixels, would run into each other.
constexpr int kTickWidth = 90, kTickHeight = 50;
constexpr int kYLabel = 30;    // pixels beside the labels of the ticks
constexpr double kLetter = 7;  // pixels of a letter, about

std::string LineClass(absl::string_view kind, int color) {
  return absl::StrCat(kind, " ", PictureClass('c', color), " ", PictureClass('d', color));
}

// Returns a line from (0, 0) to (26, 0) that looks like the curve.
std::string KeyShapes(CurveLook look, int color) {
  if (look != CurveLook::kDots)
    return absl::StrCat("<path class=\"", LineClass("line", color), "\" d=\"M0 0H26\"/>");
  const std::string color_class = PictureClass('c', color);
  return absl::StrCat("<path class=\"joined ", color_class,
                      "\" d=\"M0 0H26\"/><circle class=\"dot ", color_class,
                      "\" cx=\"13\" r=\"3.5\"/>");
}

class Picture {
 public:
  Picture(const LineChart& chart, const Margins& margins)
      : chart_(chart),
        left_(margins.left),
        right_(chart.frame.width - margins.right),
        top_(margins.top),
        bottom_(chart.frame.height - margins.bottom) {
    for (Curve curve : chart.curves) {
      curve.points = DrawablePoints(curve.points, chart.log_x, chart.log_y);
      if (curve.look == CurveLook::kSmoothedOnly) curve.points = SmoothedPoints(curve.points);
      curves_.push_back(std::move(curve));
    }
  }

  std::string Draw(bool with_legend) {
    PlotExtent x, y;
    for (const Curve& curve : curves_) {
      for (const auto& point : curve.points) {
        x.Add(point.first);
        y.Add(point.second);
      }
    }
    if (x.empty()) {
      Append("<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">no data</text>\n",
             (left_ + right_) / 2, (top_ + bottom_) / 2);
      return std::move(text_);
    }
    if (x.low() == x.high()) x.Widen(0, chart_.log_x);
    y.Widen(kMargin, chart_.log_y);
    const PlotAxis y_axis(y, chart_.log_y, bottom_, top_);
    const std::vector<double> y_ticks = y_axis.Ticks(std::max(3, (bottom_ - top_) / kTickHeight));
    for (double tick : y_ticks) {
      const double width = kLetter * static_cast<double>(PlotTickLabel(tick).size());
      left_ = std::max(left_, kYLabel + static_cast<int>(width));
    }
    const PlotAxis x_axis(x, chart_.log_x, left_, right_);
    DrawScales(x_axis, y_axis, y_ticks);
    for (const ChartMark& mark : chart_.marks) {
      if (mark.x >= x.low() && mark.x <= x.high()) DrawMark(mark, x_axis.Pixel(mark.x));
    }
    for (const Curve& curve : curves_) DrawCurve(curve, x_axis, y_axis);
    if (with_legend) DrawLegend();
    return std::move(text_);
  }

 private:
  template <typename... Args>
  void Append(const absl::FormatSpec<Args...>& format, const Args&... args) {
    absl::StrAppendFormat(&text_, format, args...);
  }

  void DrawScales(const PlotAxis& x_axis, const PlotAxis& y_axis,
                  const std::vector<double>& y_ticks) {
    const std::vector<double> x_ticks = x_axis.Ticks(std::max(3, (right_ - left_) / kTickWidth));
    text_ += "<path class=\"grid\" d=\"";
    for (double tick : x_ticks) Append("M%.1f %dV%d", x_axis.Pixel(tick), top_, bottom_);
    for (double tick : y_ticks) Append("M%d %.1fH%d", left_, y_axis.Pixel(tick), right_);
    Append("\"/>\n<rect class=\"frame\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"/>\n", left_,
           top_, right_ - left_, bottom_ - top_);
    for (double tick : x_ticks) {
      Append("<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>\n", x_axis.Pixel(tick),
             bottom_ + 17, PlotTickLabel(tick));
    }
    for (double tick : y_ticks) {
      Append("<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n", left_ - 7,
             y_axis.Pixel(tick) + 4, PlotTickLabel(tick));
    }
    Append("<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">%s</text>\n", (left_ + right_) / 2,
           bottom_ + 35, MarkupText(chart_.x_label));
    Append("<text transform=\"translate(13 %d) rotate(-90)\" text-anchor=\"middle\">%s</text>\n",
           (top_ + bottom_) / 2, MarkupText(chart_.y_label));
  }

  void DrawMark(const ChartMark& mark, double pixel) {
    Append("<path class=\"mark\" d=\"M%.1f %dV%d\"><title>%s</title></path>\n", pixel, top_,
           bottom_, MarkupText(mark.text));
  }

  void DrawLine(const PlotPoints& points, const PlotAxis& x_axis, const PlotAxis& y_axis,
                absl::string_view classes) {
    if (points.empty()) return;
    absl::StrAppend(&text_, "<path class=\"", classes, "\" d=\"", PlotPath(points, x_axis, y_axis),
                    "\"/>\n");
  }

  void DrawCurve(const Curve& curve, const PlotAxis& x_axis, const PlotAxis& y_axis) {
    const std::string line = LineClass("line", curve.color);
    switch (curve.look) {
      case CurveLook::kLine:
        return DrawLine(ThinnedPoints(curve.points, x_axis), x_axis, y_axis, line);
      case CurveLook::kSmoothedOnly:
        return DrawLine(SampledPoints(curve.points, x_axis), x_axis, y_axis, line);
      case CurveLook::kSmoothed:
        DrawLine(ThinnedPoints(curve.points, x_axis), x_axis, y_axis,
                 absl::StrCat("raw ", PictureClass('c', curve.color)));
        return DrawLine(SampledPoints(SmoothedPoints(curve.points), x_axis), x_axis, y_axis, line);
      case CurveLook::kDots:
        return DrawDots(curve, x_axis, y_axis);
    }
  }

  void DrawDots(const Curve& curve, const PlotAxis& x_axis, const PlotAxis& y_axis) {
    const PlotPoints points = ThinnedPoints(curve.points, x_axis);
    const std::string color = PictureClass('c', curve.color);
    DrawLine(points, x_axis, y_axis, absl::StrCat("joined ", color));
    const bool has_room = static_cast<int>(points.size()) * 4 <= right_ - left_;
    if (!has_room) return;
    for (const auto& [x, y] : points) {
      Append(
          "<circle class=\"dot %s\" cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\"><title>%s: %.6g at %.10g"
          "</title></circle>\n",
          color, x_axis.Pixel(x), y_axis.Pixel(y), MarkupText(curve.name), y, x);
    }
  }

  // The legend is at the top right, where falling curves leave room.
  void DrawLegend() {
    std::vector<const Curve*> entries;
    size_t longest = 0;
    for (const Curve& curve : curves_) {
      if (curve.points.empty() || curve.name.empty()) continue;
      entries.push_back(&curve);
      longest = std::max(longest, curve.name.size());
    }
    const double width = 50 + 6.5 * static_cast<double>(longest);
    Append("<g transform=\"translate(%.0f %d)\">\n", right_ - width - 8, top_ + 8);
    Append("<rect class=\"ground\" width=\"%.0f\" height=\"%d\" opacity=\"0.85\"/>\n", width,
           10 + 18 * static_cast<int>(entries.size()));
    for (size_t i = 0; i < entries.size(); ++i) {
      Append("<g transform=\"translate(8 %d)\">", 15 + 18 * static_cast<int>(i));
      absl::StrAppend(&text_, KeyShapes(entries[i]->look, entries[i]->color),
                      "<text x=\"34\" y=\"4\">", MarkupText(entries[i]->name), "</text></g>\n");
    }
    text_ += "</g>\n";
  }

  const LineChart& chart_;
  int left_;
  const int right_, top_, bottom_;
  std::vector<Curve> curves_;
  std::string text_;
};

}  // namespace

std::string LineChartAlone(const LineChart& chart) {
  return absl::StrCat(BeginPictureAlone(chart.frame), "<text class=\"title\" x=\"",
                      chart.frame.width / 2, "\" y=\"26\" text-anchor=\"middle\">",
                      MarkupText(chart.frame.title), "</text>\n",
                      Picture(chart, kAlone).Draw(/*with_legend=*/true), kEndPicture);
}

std::string LineChartInPage(const LineChart& chart, absl::string_view id) {
  return absl::StrCat(BeginPictureInPage(chart.frame, id),
                      Picture(chart, kInPage).Draw(/*with_legend=*/false), kEndPicture);
}

std::string CurveKey(CurveLook look, int color) {
  return absl::StrCat(
      "<svg class=\"key\" width=\"26\" height=\"10\" viewBox=\"0 -5 26 10\" aria-hidden=\"true\">",
      KeyShapes(look, color), "</svg>");
}

}  // namespace megatron
