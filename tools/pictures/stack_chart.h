// Draws the parts of a whole over an axis, stacked on each other.
#ifndef MEGATRON_TOOLS_PICTURES_STACK_CHART_H_
#define MEGATRON_TOOLS_PICTURES_STACK_CHART_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "tools/pictures/picture_style.h"

namespace megatron {

// A part of the whole. Beyond kPictureColors parts, colors are used again, paler.
struct StackedPart {
  std::string name;
  std::vector<double> values;  // one for each interval, at least 0
  int color = 0;               // as for StackKey
};

struct StackChart {
  PictureFrame frame;
  std::string x_label;
  std::string y_label;
  std::vector<double> edges;  // intervals of the axis: one more than values, strictly ascending
  std::vector<StackedPart> parts;
};

std::string StackChartInPage(const StackChart& chart, absl::string_view id);

// Returns a small picture of the part's color, for a legend.
std::string StackKey(int part);

}  // namespace megatron

#endif  // MEGATRON_TOOLS_PICTURES_STACK_CHART_H_
