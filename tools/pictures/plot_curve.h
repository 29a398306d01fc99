// The points of a curve: which of them are drawn, and how smoothly.
#ifndef MEGATRON_TOOLS_PICTURES_PLOT_CURVE_H_
#define MEGATRON_TOOLS_PICTURES_PLOT_CURVE_H_

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "tools/pictures/plot_axis.h"

namespace megatron {

inline constexpr size_t kFewestPointsToSmooth = 100;

using PlotPoints = std::vector<std::pair<double, double>>;  // (x, y), ascending by x

// Returns the points that scales can place: numbers of at most 1e100, and above 1e-100 where a
// scale is logarithmic.
PlotPoints DrawablePoints(const PlotPoints& points, bool log_x, bool log_y);

// Returns means over windows that reach equally far to both sides, so that the curve does not lag,
// and that are narrow at the beginning of a run, since losses fall steeply there. A window has
// about 2 % of the points.
PlotPoints SmoothedPoints(const PlotPoints& points);

// Returns whether smoothing shows more of the curve: it has kFewestPointsToSmooth, and goes up and
// down over many times its height.
bool IsNoisy(const PlotPoints& points);

// Returns whether the curve is easier to read on a logarithmic scale: all of it is positive, and
// some of it lies far above most of it.
bool WantsLogScale(const PlotPoints& points);

// Returns the lowest and the highest point of each column of pixels, in their order.
PlotPoints ThinnedPoints(const PlotPoints& points, const PlotAxis& x_axis);

// Returns the middle point of each column of pixels, for curves that are smooth.
PlotPoints SampledPoints(const PlotPoints& points, const PlotAxis& x_axis);

// Returns the line through the points as the data of an SVG path, in tenths of pixels. Each point
// is relative to the one before, which is short.
std::string PlotPath(const PlotPoints& points, const PlotAxis& x_axis, const PlotAxis& y_axis);

}  // namespace megatron

#endif  // MEGATRON_TOOLS_PICTURES_PLOT_CURVE_H_
