// Draws a table of numbers as cells that are the darker the larger their values are.
#ifndef MEGATRON_TOOLS_PICTURES_HEAT_MAP_H_
#define MEGATRON_TOOLS_PICTURES_HEAT_MAP_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "tools/pictures/picture_style.h"

namespace megatron {

struct HeatMap {
  PictureFrame frame;
  std::string x_label;
  std::vector<double> edges;      // columns of the axis: one more than values, strictly ascending
  std::vector<std::string> rows;  // their names, from the top
  // One for each row and column. NaN: there is none, and the cell stays empty. Infinite values are
  // drawn in another color.
  std::vector<std::vector<double>> values;
  bool log = false;  // equal factors are equal steps of the color; values of 0 or less are pale
};

// Returns the smallest and the largest finite value that is drawn; 0 and 0 if there is none.
struct HeatRange {
  double low = 0, high = 0;
};
HeatRange RangeOf(const HeatMap& map);

std::string HeatMapInPage(const HeatMap& map, absl::string_view id);

// Returns a small picture of the colors from the lowest to the highest value, for a legend.
std::string HeatKey();
// The same of values that are not finite.
std::string InfiniteKey();

}  // namespace megatron

#endif  // MEGATRON_TOOLS_PICTURES_HEAT_MAP_H_
