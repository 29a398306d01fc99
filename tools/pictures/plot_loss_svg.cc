#include "tools/pictures/plot_loss_svg.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"

namespace megatron {
namespace {

using Points = std::vector<std::pair<double, double>>;

// Okabe and Ito's colors, which the color-blind tell apart.
constexpr absl::string_view kColors[] = {"#0072B2", "#D55E00", "#009E73",
                                         "#CC79A7", "#E69F00", "#56B4E9"};
constexpr int kColorCount = sizeof(kColors) / sizeof(kColors[0]);

constexpr int kLeft = 72, kRight = 24, kTop = 48, kBottom = 56;
constexpr double kSmoothedShare = 0.02;  // share of a curve's points in each smoothed one
constexpr size_t kSteepStart = 8;        // a window reaches no further than this part of its index
constexpr size_t kFewestToSmooth = 50;
constexpr double kMargin = 0.04;  // share of the values' extent left free above and below

// One dimension of the picture: from values to pixels.
class Axis {
 public:
  Axis(double low, double high, bool log, double first_pixel, double last_pixel)
      : low_(low), high_(high), log_(log), first_pixel_(first_pixel), last_pixel_(last_pixel) {}

  double Pixel(double value) const {
    const double share = (Scaled(value) - Scaled(low_)) / (Scaled(high_) - Scaled(low_));
    return first_pixel_ + share * (last_pixel_ - first_pixel_);
  }
  std::vector<double> Ticks(int count) const { return PlotTicks(low_, high_, count, log_); }

 private:
  double Scaled(double value) const { return log_ ? std::log10(value) : value; }

  double low_, high_;
  bool log_;
  double first_pixel_, last_pixel_;
};

std::string Escaped(absl::string_view text) {
  return absl::StrReplaceAll(text,
                             {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

bool CanBeDrawn(const std::pair<double, double>& point, const LossPlotOptions& options) {
  return std::isfinite(point.first) && std::isfinite(point.second) &&
         (!options.log_x || point.first > 0) && (!options.log_y || point.second > 0);
}

Points Drawable(const Points& points, const LossPlotOptions& options) {
  Points kept;
  std::copy_if(points.begin(), points.end(), std::back_inserter(kept),
               [&](const std::pair<double, double>& point) { return CanBeDrawn(point, options); });
  return kept;
}

// Returns means over windows that reach equally far to both sides, so that the curve does not lag,
// and that are narrow at the beginning of a run, since losses fall steeply there.
Points Smoothed(const Points& points) {
  const size_t half = static_cast<size_t>(kSmoothedShare / 2 * static_cast<double>(points.size()));
  std::vector<double> sums = {0};
  for (const auto& point : points) sums.push_back(sums.back() + point.second);
  Points smoothed;
  for (size_t i = 0; i < points.size(); ++i) {
    const size_t reach = std::min(half, i / kSteepStart);
    const size_t begin = i - reach;
    const size_t end = std::min(i + reach + 1, points.size());
    smoothed.emplace_back(points[i].first,
                          (sums[end] - sums[begin]) / static_cast<double>(end - begin));
  }
  return smoothed;
}

// Returns the lowest and the highest point of each column of pixels, in their order.
Points Thinned(const Points& points, const Axis& x_axis) {
  Points thinned;
  for (size_t begin = 0; begin < points.size();) {
    const double column = std::floor(x_axis.Pixel(points[begin].first));
    size_t end = begin;
    while (end < points.size() && std::floor(x_axis.Pixel(points[end].first)) == column) ++end;
    const auto by_loss = [](const auto& a, const auto& b) { return a.second < b.second; };
    auto [low, high] = std::minmax_element(points.begin() + begin, points.begin() + end, by_loss);
    if (high < low) std::swap(low, high);
    thinned.push_back(*low);
    if (high != low) thinned.push_back(*high);
    begin = end;
  }
  return thinned;
}

// Returns the smallest interval that holds all values, widened if it is empty.
class Extent {
 public:
  void Add(double value) {
    low_ = std::min(low_, value);
    high_ = std::max(high_, value);
  }
  bool empty() const { return low_ > high_; }
  double low() const { return low_; }
  double high() const { return high_; }

  void Widen(double share, bool log) {
    if (log) {
      const double factor = low_ < high_ ? std::pow(high_ / low_, share) : 1.1;
      low_ /= factor;
      high_ *= factor;
    } else {
      const double margin =
          low_ < high_ ? (high_ - low_) * share : std::max(std::abs(low_) * 0.1, 0.5);
      low_ -= margin;
      high_ += margin;
    }
  }

 private:
  double low_ = std::numeric_limits<double>::infinity();
  double high_ = -std::numeric_limits<double>::infinity();
};

class Picture {
 public:
  Picture(const std::vector<LossCurve>& curves, const LossPlotOptions& options)
      : options_(options) {
    for (LossCurve curve : curves) {
      curve.train = Drawable(curve.train, options);
      curve.validation = Drawable(curve.validation, options);
      curves_.push_back(std::move(curve));
    }
  }

  std::string Draw() {
    Append(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d "
        "%d\" "
        "font-family=\"Helvetica, Arial, sans-serif\" font-size=\"12\">\n",
        options_.width, options_.height, options_.width, options_.height);
    Append("<rect width=\"%d\" height=\"%d\" fill=\"white\"/>\n", options_.width, options_.height);
    Append("<text x=\"%d\" y=\"26\" font-size=\"17\" text-anchor=\"middle\">%s</text>\n",
           options_.width / 2, Escaped(options_.title));
    Extent x, y;
    for (const LossCurve& curve : curves_) {
      for (const Points* points : {&curve.train, &curve.validation}) {
        for (const auto& point : *points) {
          x.Add(point.first);
          y.Add(point.second);
        }
      }
    }
    if (x.empty()) {
      Append("<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">no data</text>\n", options_.width / 2,
             options_.height / 2);
    } else {
      DrawCurves(x, y);
    }
    text_ += "</svg>\n";
    return std::move(text_);
  }

 private:
  template <typename... Args>
  void Append(const absl::FormatSpec<Args...>& format, const Args&... args) {
    absl::StrAppendFormat(&text_, format, args...);
  }

  void DrawCurves(Extent x, Extent y) {
    if (x.low() == x.high()) x.Widen(0, options_.log_x);
    y.Widen(kMargin, options_.log_y);
    const Axis x_axis(x.low(), x.high(), options_.log_x, kLeft, options_.width - kRight);
    const Axis y_axis(y.low(), y.high(), options_.log_y, options_.height - kBottom, kTop);
    DrawGrid(x_axis, y_axis);
    for (size_t i = 0; i < curves_.size(); ++i)
      DrawCurve(curves_[i], kColors[i % kColorCount], x_axis, y_axis);
    DrawLegend();
  }

  void DrawGrid(const Axis& x_axis, const Axis& y_axis) {
    const int right = options_.width - kRight;
    const int bottom = options_.height - kBottom;
    text_ += "<g stroke=\"#e4e4e4\" fill=\"none\">\n";
    for (double tick : x_axis.Ticks(8))
      Append("<path d=\"M%.1f %dV%d\"/>\n", x_axis.Pixel(tick), kTop, bottom);
    for (double tick : y_axis.Ticks(7))
      Append("<path d=\"M%d %.1fH%d\"/>\n", kLeft, y_axis.Pixel(tick), right);
    Append("<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" stroke=\"#888\"/>\n</g>\n", kLeft,
           kTop, right - kLeft, bottom - kTop);
    text_ += "<g fill=\"#444\">\n";
    for (double tick : x_axis.Ticks(8)) {
      Append("<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>\n", x_axis.Pixel(tick),
             bottom + 18, PlotTickLabel(tick));
    }
    for (double tick : y_axis.Ticks(7)) {
      Append("<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n", kLeft - 8,
             y_axis.Pixel(tick) + 4, PlotTickLabel(tick));
    }
    Append("<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">iteration</text>\n", (kLeft + right) / 2,
           options_.height - 14);
    Append(
        "<text transform=\"translate(20 %d) rotate(-90)\" "
        "text-anchor=\"middle\">loss</text>\n</g>\n",
        (kTop + bottom) / 2);
  }

  void DrawLine(const Points& points, const Axis& x_axis, const Axis& y_axis,
                absl::string_view style) {
    if (points.empty()) return;
    text_ += "<polyline fill=\"none\" stroke-linejoin=\"round\" ";
    absl::StrAppend(&text_, style, " points=\"");
    for (const auto& [x, y] : Thinned(points, x_axis))
      Append("%.1f,%.1f ", x_axis.Pixel(x), y_axis.Pixel(y));
    text_ += "\"/>\n";
  }

  void DrawCurve(const LossCurve& curve, absl::string_view color, const Axis& x_axis,
                 const Axis& y_axis) {
    const bool smooth = curve.train.size() >= kFewestToSmooth;
    DrawLine(curve.train, x_axis, y_axis,
             absl::StrCat("stroke=\"", color, "\" stroke-width=\"1\" opacity=\"",
                          smooth ? "0.3" : "1", "\""));
    if (smooth)
      DrawLine(Smoothed(curve.train), x_axis, y_axis,
               absl::StrCat("stroke=\"", color, "\" stroke-width=\"2\""));
    DrawLine(curve.validation, x_axis, y_axis,
             absl::StrCat("stroke=\"", color, "\" stroke-width=\"1.5\" stroke-dasharray=\"5 4\""));
    for (const auto& [x, y] : curve.validation) {
      Append(
          "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\" fill=\"white\" stroke=\"%s\" "
          "stroke-width=\"1.5\"/>\n",
          x_axis.Pixel(x), y_axis.Pixel(y), color);
    }
  }

  // The legend is at the top right, where falling curves leave room.
  void DrawLegend() {
    std::vector<std::pair<std::string, std::string>> entries;  // mark, words
    for (size_t i = 0; i < curves_.size(); ++i) {
      const absl::string_view color = kColors[i % kColorCount];
      const std::string name = curves_[i].name.empty() ? "" : curves_[i].name + ", ";
      if (!curves_[i].train.empty()) {
        entries.emplace_back(
            absl::StrFormat("<path d=\"M0 -4H26\" stroke=\"%s\" stroke-width=\"2\"/>", color),
            name + "training");
      }
      if (!curves_[i].validation.empty()) {
        entries.emplace_back(
            absl::StrFormat(
                "<path d=\"M0 -4H26\" stroke=\"%s\" stroke-width=\"1.5\" stroke-dasharray=\"5 4\"/>"
                "<circle cx=\"13\" cy=\"-4\" r=\"3.5\" fill=\"white\" stroke=\"%s\" "
                "stroke-width=\"1.5\"/>",
                color, color),
            name + "validation");
      }
    }
    size_t longest = 0;
    for (const auto& entry : entries) longest = std::max(longest, entry.second.size());
    const double width = 50 + 6.5 * static_cast<double>(longest);
    Append(
        "<g transform=\"translate(%.0f %d)\">\n<rect width=\"%.0f\" height=\"%d\" fill=\"white\" "
        "opacity=\"0.85\"/>\n",
        options_.width - kRight - width - 8, kTop + 8, width,
        10 + 18 * static_cast<int>(entries.size()));
    for (size_t i = 0; i < entries.size(); ++i) {
      Append("<g transform=\"translate(8 %d)\">%s<text x=\"34\">%s</text></g>\n",
             19 + 18 * static_cast<int>(i), entries[i].first, Escaped(entries[i].second));
    }
    text_ += "</g>\n";
  }

  const LossPlotOptions& options_;
  std::vector<LossCurve> curves_;
  std::string text_;
};

}  // namespace

std::vector<double> PlotTicks(double low, double high, int count, bool log) {
  std::vector<double> ticks;
  if (log) {
    const int first = static_cast<int>(std::floor(std::log10(low)));
    const int last = static_cast<int>(std::ceil(std::log10(high)));
    const bool between = last - first <= count / 2;
    for (int decade = first; decade <= last; ++decade) {
      for (double factor : {1.0, 2.0, 5.0}) {
        const double tick = factor * std::pow(10.0, decade);
        if ((factor == 1.0 || between) && tick >= low && tick <= high) ticks.push_back(tick);
      }
    }
    if (ticks.size() >= 2) return ticks;
    ticks.clear();  // ticks of a linear axis, for less than a decade
  }
  const double rough = (high - low) / count;
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  const double leading = rough / power;
  const double step = power * (leading < 1.5 ? 1 : leading < 3.5 ? 2 : leading < 7.5 ? 5 : 10);
  for (double i = std::ceil(low / step); i * step <= high; ++i)
    ticks.push_back(i * step + 0.0);  // no minus zero
  return ticks;
}

std::string PlotTickLabel(double value) {
  const double size = std::abs(value);
  if (size >= 1e6) return absl::StrFormat("%.4gM", value / 1e6);
  if (size >= 1e4) return absl::StrFormat("%.4gk", value / 1e3);
  return absl::StrFormat("%.4g", size < 1e-12 ? 0.0 : value);
}

std::string LossPlotSvg(const std::vector<LossCurve>& curves, const LossPlotOptions& options) {
  return Picture(curves, options).Draw();
}

std::string LossPlotHtml(const std::vector<LossCurve>& curves, const LossPlotOptions& options) {
  return absl::StrCat("<!DOCTYPE html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\"><title>",
                      Escaped(options.title), "</title></head>\n<body>\n",
                      LossPlotSvg(curves, options), "</body>\n</html>\n");
}

}  // namespace megatron
