#include "tools/watch/braille.h"

#include <algorithm>
#include <cmath>

namespace megatron::watch {
namespace {

// The bit of each dot in Unicode's braille patterns, by row and column.
constexpr unsigned char kDots[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};

// Returns U+2800 + `dots` in UTF-8.
std::string Pattern(unsigned char dots) {
  if (dots == 0) return " ";
  return {'\xe2', static_cast<char>(0xa0 | (dots >> 6)), static_cast<char>(0x80 | (dots & 0x3f))};
}

int Place(double value, const PlotExtent& extent, int count) {
  const double width = extent.high() - extent.low();
  const double share = width > 0 ? (value - extent.low()) / width : 0.5;
  return std::clamp(static_cast<int>(std::lround(share * (count - 1))), 0, count - 1);
}

}  // namespace

std::vector<std::string> BrailleCurve(const PlotPoints& points, const PlotExtent& x,
                                      const PlotExtent& y, int columns, int rows) {
  std::vector<std::vector<unsigned char>> cells(rows, std::vector<unsigned char>(columns, 0));
  const int width = 2 * columns, height = 4 * rows;
  std::vector<int> low(width, height), high(width, -1);  // dots from the top, by column
  for (const auto& [at, value] : points) {
    const int column = Place(at, x, width), row = height - 1 - Place(value, y, height);
    low[column] = std::min(low[column], row);
    high[column] = std::max(high[column], row);
  }
  for (int column = 0; column < width; ++column) {
    for (int row = low[column]; row <= high[column]; ++row)
      cells[row / 4][column / 2] |= kDots[row % 4][column % 2];
  }
  std::vector<std::string> lines(rows);
  for (int row = 0; row < rows; ++row) {
    for (const unsigned char dots : cells[row]) lines[row] += Pattern(dots);
  }
  return lines;
}

}  // namespace megatron::watch
