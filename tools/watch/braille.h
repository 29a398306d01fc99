// Curves of text: each character is a braille pattern of two columns of four dots.
#ifndef MEGATRON_TOOLS_WATCH_BRAILLE_H_
#define MEGATRON_TOOLS_WATCH_BRAILLE_H_

#include <string>
#include <vector>

#include "tools/pictures/plot_axis.h"
#include "tools/pictures/plot_curve.h"

namespace megatron::watch {

// Draws the points, without the line between them, on `rows` lines of `columns` characters. Points
// that share a column of dots are drawn from the lowest to the highest. Both extents must not be
// empty.
std::vector<std::string> BrailleCurve(const PlotPoints& points, const PlotExtent& x,
                                      const PlotExtent& y, int columns, int rows);

}  // namespace megatron::watch

#endif  // MEGATRON_TOOLS_WATCH_BRAILLE_H_
