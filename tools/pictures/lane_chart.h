// Draws when things happened: a lane for each of those who did them, a box for each thing. Panels
// of lanes lie under each other, on one scale.
#ifndef MEGATRON_TOOLS_PICTURES_LANE_CHART_H_
#define MEGATRON_TOOLS_PICTURES_LANE_CHART_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "tools/pictures/picture_style.h"

namespace megatron {

struct LaneBox {
  double begin = 0, end = 0;
  int color = 0;
  double opacity = 1;
  std::string label;   // written into the box if there is room
  std::string title;   // shown by a browser where the pointer is
  bool inner = false;  // a part of the box below it: drawn in the lower half of the lane
};

struct Lane {
  std::string name;
  std::vector<LaneBox> boxes;  // in the order in which they are drawn
};

struct LanePanel {
  std::string title;  // may be empty
  std::vector<Lane> lanes;
};

// What boxes of a color are.
struct LaneKind {
  int color = 0;
  std::string name;
};

struct LaneChart {
  PictureFrame frame;  // the height follows from the lanes
  std::string x_label;
  std::vector<LanePanel> panels;
  std::vector<LaneKind> kinds;   // for the legend of a picture alone
  size_t most_boxes = SIZE_MAX;  // a limit for all lanes; the narrowest boxes are left out
};

// Pixels beside the boxes of a picture whose longest name of a lane has so many letters.
int LaneMargins(size_t letters);

// Boxes that are too narrow to be seen are left out.
std::string LaneChartAlone(const LaneChart& chart);
// The same without the legend, which belongs to the page.
std::string LaneChartInPage(const LaneChart& chart, absl::string_view id);

// Returns those of the kinds whose color some box has.
std::vector<LaneKind> KindsThere(const std::vector<LanePanel>& panels,
                                 const std::vector<LaneKind>& kinds);

}  // namespace megatron

#endif  // MEGATRON_TOOLS_PICTURES_LANE_CHART_H_
