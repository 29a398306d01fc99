#include "tools/pictures/plot_axis.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"

namespace megatron {

std::vector<double> PlotTicks(double low, double high, int count, bool log) {
  std::vector<double> ticks;
  if (log) {
    const int first = static_cast<int>(std::floor(std::log10(low)));
    const int last = static_cast<int>(std::ceil(std::log10(high)));
    const bool between = last - first <= count / 2;
    const int stride = std::max(1, (last - first) / (2 * count));
    for (int decade = first; decade <= last; decade += stride) {
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
  const double first = std::ceil(low / step);
  for (int i = 0; (first + i) * step <= high && i <= 4 * count; ++i)
    ticks.push_back((first + i) * step + 0.0);  // no minus zero
  return ticks;
}

std::string PlotTickLabel(double value) {
  const double size = std::abs(value);
  if (size >= 1e15) return absl::StrFormat("%.3g", value);
  if (size >= 1e12) return absl::StrFormat("%.4gT", value / 1e12);
  if (size >= 1e9) return absl::StrFormat("%.4gG", value / 1e9);
  if (size >= 1e6) return absl::StrFormat("%.4gM", value / 1e6);
  if (size >= 1e4) return absl::StrFormat("%.4gk", value / 1e3);
  return absl::StrFormat("%.4g", size < 1e-12 ? 0.0 : value);
}

void PlotExtent::Add(double value) {
  low_ = std::min(low_, value);
  high_ = std::max(high_, value);
}

void PlotExtent::Widen(double share, bool log) {
  // Neighboring numbers of that size need not differ in what a share of their distance adds.
  const bool is_point = high_ - low_ <= 1e-9 * std::max(std::abs(low_), std::abs(high_));
  if (log) {
    const double factor = is_point ? 1.1 : std::pow(high_ / low_, share);
    low_ /= factor;
    high_ *= factor;
  } else {
    const double margin = is_point ? std::max(std::abs(low_) * 0.1, 0.5) : (high_ - low_) * share;
    low_ -= margin;
    high_ += margin;
  }
}

PlotAxis::PlotAxis(const PlotExtent& extent, bool log, double first_pixel, double last_pixel)
    : low_(extent.low()),
      high_(extent.high()),
      log_(log),
      first_pixel_(first_pixel),
      last_pixel_(last_pixel) {}

double PlotAxis::Pixel(double value) const {
  const double share = (Scaled(value) - Scaled(low_)) / (Scaled(high_) - Scaled(low_));
  return first_pixel_ + share * (last_pixel_ - first_pixel_);
}

double PlotAxis::Scaled(double value) const { return log_ ? std::log10(value) : value; }

}  // namespace megatron
