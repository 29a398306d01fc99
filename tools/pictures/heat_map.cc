#include "tools/pictures/heat_map.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "glog/logging.h"
#include "tools/pictures/markup_text.h"
#include "tools/pictures/plot_axis.h"

namespace megatron {
namespace {

constexpr int kLeft = 130, kRight = 14, kTop = 10, kBottom = 40;
constexpr int kTicks = 5, kRowHeight = 14;  // pixels between the names of rows
constexpr int kLevels = 8;
constexpr int kEmpty = -1, kInfinite = kLevels;

std::string FillOf(int level) {
  if (level == kInfinite) return absl::StrCat("class=\"", PictureClass('f', 1), "\"");
  return absl::StrFormat("class=\"%s\" fill-opacity=\"%.2f\"", PictureClass('f', 0),
                         0.08 + 0.92 * level / (kLevels - 1));
}

bool IsDrawn(const HeatMap& map, double value) {
  return std::isfinite(value) && (!map.log || value > 0);
}

int LevelOf(const HeatMap& map, const HeatRange& range, double value) {
  if (std::isnan(value)) return kEmpty;
  if (!std::isfinite(value)) return kInfinite;
  if (range.low >= range.high || !IsDrawn(map, value)) return 0;
  const double share = map.log ? std::log(value / range.low) / std::log(range.high / range.low)
                               : (value - range.low) / (range.high - range.low);
  return std::clamp(static_cast<int>(share * kLevels), 0, kLevels - 1);
}

// Cells of one color are one path, and neighbors in a row are one rectangle.
std::array<std::string, kLevels + 1> PathsOf(const HeatMap& map, const PlotAxis& x_axis,
                                             const PlotAxis& y_axis) {
  std::array<std::string, kLevels + 1> paths;
  const HeatRange range = RangeOf(map);
  for (size_t row = 0; row < map.rows.size(); ++row) {
    const std::vector<double>& values = map.values[row];
    const double top = y_axis.Pixel(static_cast<double>(row));
    const double height = y_axis.Pixel(static_cast<double>(row + 1)) - top;
    for (size_t begin = 0, end; begin < values.size(); begin = end) {
      const int level = LevelOf(map, range, values[begin]);
      for (end = begin + 1; end < values.size() && LevelOf(map, range, values[end]) == level;)
        ++end;
      if (level == kEmpty) continue;
      const double left = x_axis.Pixel(map.edges[begin]);
      absl::StrAppendFormat(&paths[level], "M%.1f %.1fh%.1fv%.1fH%.1fz", left, top,
                            x_axis.Pixel(map.edges[end]) - left, height, left);
    }
  }
  return paths;
}

}  // namespace

HeatRange RangeOf(const HeatMap& map) {
  PlotExtent extent;
  for (const std::vector<double>& row : map.values) {
    for (const double value : row) {
      if (IsDrawn(map, value)) extent.Add(value);
    }
  }
  return extent.empty() ? HeatRange() : HeatRange{extent.low(), extent.high()};
}

std::string HeatMapInPage(const HeatMap& map, absl::string_view id) {
  CHECK_GE(map.edges.size(), 2u);
  CHECK(!map.rows.empty());
  CHECK_EQ(map.values.size(), map.rows.size());
  for (const std::vector<double>& row : map.values) CHECK_EQ(row.size() + 1, map.edges.size());
  const int right = map.frame.width - kRight, bottom = map.frame.height - kBottom;
  PlotExtent x, y;
  x.Add(map.edges.front());
  x.Add(map.edges.back());
  y.Add(0);
  y.Add(static_cast<double>(map.rows.size()));
  const PlotAxis x_axis(x, false, kLeft, right), y_axis(y, false, kTop, bottom);
  std::string svg = BeginPictureInPage(map.frame, id);
  const auto paths = PathsOf(map, x_axis, y_axis);
  for (size_t level = 0; level < paths.size(); ++level) {
    if (!paths[level].empty()) {
      absl::StrAppend(&svg, "<path ", FillOf(static_cast<int>(level)), " d=\"", paths[level],
                      "\"/>\n");
    }
  }
  absl::StrAppendFormat(&svg,
                        "<rect class=\"frame\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"/>\n",
                        kLeft, kTop, right - kLeft, bottom - kTop);
  for (const double tick : x_axis.Ticks(kTicks)) {
    absl::StrAppendFormat(&svg, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>\n",
                          x_axis.Pixel(tick), bottom + 17, PlotTickLabel(tick));
  }
  const size_t most = static_cast<size_t>((bottom - kTop) / kRowHeight);
  const size_t stride = (map.rows.size() + most - 1) / most;
  for (size_t row = 0; row < map.rows.size(); row += stride) {
    absl::StrAppendFormat(&svg, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n",
                          kLeft - 7, y_axis.Pixel(static_cast<double>(row) + 0.5) + 4,
                          MarkupText(map.rows[row]));
  }
  absl::StrAppendFormat(&svg, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">%s</text>\n",
                        (kLeft + right) / 2, bottom + 35, MarkupText(map.x_label));
  return svg + kEndPicture;
}

std::string HeatKey() {
  std::string svg = "<svg class=\"key\" width=\"48\" height=\"14\" aria-hidden=\"true\">";
  for (int level = 0; level < kLevels; ++level)
    absl::StrAppend(&svg, "<rect x=\"", 6 * level, "\" width=\"6\" height=\"14\" ", FillOf(level),
                    "/>");
  return svg + "</svg>";
}

std::string InfiniteKey() {
  return absl::StrCat(
      "<svg class=\"key\" width=\"14\" height=\"14\" aria-hidden=\"true\"><rect width=\"14\" "
      "height=\"14\" ",
      FillOf(kInfinite), "/></svg>");
}

}  // namespace megatron
