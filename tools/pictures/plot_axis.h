// The scales of a picture: from values to pixels, and the ticks on the way.
#ifndef MEGATRON_TOOLS_PICTURES_PLOT_AXIS_H_
#define MEGATRON_TOOLS_PICTURES_PLOT_AXIS_H_

#include <limits>
#include <string>
#include <vector>

namespace megatron {

// Returns the tick values in [low, high]: multiples of 1, 2 or 5 times a power of ten, about
// `count` of them. With `log`, powers of ten, and their multiples by 2 and 5 if there are few. Both
// ends must be finite, low < high, and low > 0 with `log`.
std::vector<double> PlotTicks(double low, double high, int count, bool log);

// Returns a short label: "0.5", "1500", "20k", "1.5M".
std::string PlotTickLabel(double value);

// The smallest interval that holds all values that were added.
class PlotExtent {
 public:
  void Add(double value);
  // Adds a share of its length at both ends, on a logarithmic scale with `log`. An interval of one
  // value becomes a longer one.
  void Widen(double share, bool log);

  bool empty() const { return low_ > high_; }
  double low() const { return low_; }
  double high() const { return high_; }

 private:
  double low_ = std::numeric_limits<double>::infinity();
  double high_ = -std::numeric_limits<double>::infinity();
};

// One dimension of a picture. The extent must not be empty, low < high, and low > 0 with `log`.
class PlotAxis {
 public:
  PlotAxis(const PlotExtent& extent, bool log, double first_pixel, double last_pixel);

  double Pixel(double value) const;
  std::vector<double> Ticks(int count) const { return PlotTicks(low_, high_, count, log_); }

 private:
  double Scaled(double value) const;

  double low_, high_;
  bool log_;
  double first_pixel_, last_pixel_;
};

}  // namespace megatron

#endif  // MEGATRON_TOOLS_PICTURES_PLOT_AXIS_H_
