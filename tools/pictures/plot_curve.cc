#include "tools/pictures/plot_curve.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>

#include "absl/strings/str_cat.h"

namespace megatron {
namespace {

constexpr double kLargest = 1e100;
constexpr double kSmoothedShare = 0.02;  // share of a curve's points in each smoothed one
constexpr size_t kSteepStart = 8;        // a window reaches no further than this part of its index
constexpr double kNoisyTravel = 5;       // heights over which a noisy curve travels
constexpr double kFarFromMost = 10;      // ratio to the median that wants a logarithmic scale

bool CanBePlaced(double value, bool log) {
  return std::abs(value) <= kLargest && (!log || value >= 1 / kLargest);
}

bool IsLower(const std::pair<double, double>& a, const std::pair<double, double>& b) {
  return a.second < b.second;
}

// Calls `visit(begin, end)` for the points of each column of pixels.
template <typename Visitor>
void ForEachColumn(const PlotPoints& points, const PlotAxis& x_axis, Visitor visit) {
  for (size_t begin = 0; begin < points.size();) {
    const double column = std::floor(x_axis.Pixel(points[begin].first));
    size_t end = begin;
    while (end < points.size() && std::floor(x_axis.Pixel(points[end].first)) == column) ++end;
    visit(begin, end);
    begin = end;
  }
}

int64_t Tenths(double pixels) { return std::llround(10 * pixels); }

// Appends tenths as a number of pixels: "-1.5", "2", ".3".
void AppendPixels(int64_t tenths, std::string* path) {
  const int64_t size = std::abs(tenths);
  absl::StrAppend(path, tenths < 0 ? "-" : "");
  if (size >= 10 || size == 0) absl::StrAppend(path, size / 10);
  if (size % 10 != 0) absl::StrAppend(path, ".", size % 10);
}

}  // namespace

PlotPoints DrawablePoints(const PlotPoints& points, bool log_x, bool log_y) {
  PlotPoints kept;
  std::copy_if(points.begin(), points.end(), std::back_inserter(kept), [&](const auto& point) {
    return CanBePlaced(point.first, log_x) && CanBePlaced(point.second, log_y);
  });
  return kept;
}

PlotPoints SmoothedPoints(const PlotPoints& points) {
  const size_t half = static_cast<size_t>(kSmoothedShare / 2 * static_cast<double>(points.size()));
  std::vector<double> sums = {0};
  for (const auto& point : points) sums.push_back(sums.back() + point.second);
  PlotPoints smoothed;
  for (size_t i = 0; i < points.size(); ++i) {
    const size_t reach = std::min(half, i / kSteepStart);
    const size_t begin = i - reach;
    const size_t end = std::min(i + reach + 1, points.size());
    smoothed.emplace_back(points[i].first,
                          (sums[end] - sums[begin]) / static_cast<double>(end - begin));
  }
  return smoothed;
}

bool IsNoisy(const PlotPoints& points) {
  if (points.size() < kFewestPointsToSmooth) return false;
  PlotExtent extent;
  double travel = 0;
  for (size_t i = 0; i < points.size(); ++i) {
    extent.Add(points[i].second);
    if (i > 0) travel += std::abs(points[i].second - points[i - 1].second);
  }
  return travel > kNoisyTravel * (extent.high() - extent.low());
}

bool WantsLogScale(const PlotPoints& points) {
  if (points.empty()) return false;
  std::vector<double> values;
  for (const auto& point : points) values.push_back(point.second);
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  const double least = *low, most = *high;
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return least > 0 && most > kFarFromMost * *middle;
}

PlotPoints ThinnedPoints(const PlotPoints& points, const PlotAxis& x_axis) {
  PlotPoints thinned;
  ForEachColumn(points, x_axis, [&](size_t begin, size_t end) {
    auto [low, high] = std::minmax_element(points.begin() + static_cast<ptrdiff_t>(begin),
                                           points.begin() + static_cast<ptrdiff_t>(end), IsLower);
    if (high < low) std::swap(low, high);
    thinned.push_back(*low);
    if (high != low) thinned.push_back(*high);
  });
  return thinned;
}

PlotPoints SampledPoints(const PlotPoints& points, const PlotAxis& x_axis) {
  PlotPoints sampled;
  ForEachColumn(points, x_axis, [&](size_t begin, size_t end) {
    sampled.push_back(points[begin + (end - begin) / 2]);
  });
  return sampled;
}

std::string PlotPath(const PlotPoints& points, const PlotAxis& x_axis, const PlotAxis& y_axis) {
  std::string path;
  int64_t last_x = 0, last_y = 0;
  for (const auto& [x, y] : points) {
    const int64_t at_x = Tenths(x_axis.Pixel(x)), at_y = Tenths(y_axis.Pixel(y));
    absl::StrAppend(&path, path.empty() ? "M" : "l");
    AppendPixels(at_x - last_x, &path);
    absl::StrAppend(&path, at_y - last_y < 0 ? "" : " ");
    AppendPixels(at_y - last_y, &path);
    last_x = at_x;
    last_y = at_y;
  }
  return path;
}

}  // namespace megatron
