#include "tools/pictures/lane_chart.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/pictures/markup_text.h"
#include "tools/pictures/plot_axis.h"

namespace megatron {
namespace {

constexpr int kLane = 26, kGap = 6, kRight = 16, kTop = 6, kTitle = 30, kScale = 44, kLegend = 26;
constexpr double kLetter = 7;       // pixels of a letter, about
constexpr double kNarrowest = 0.2;  // pixels of a box that can be seen

double LengthOf(const LaneBox& box) { return box.end - box.begin; }

bool CanBePlaced(const LaneBox& box) {
  return std::abs(box.begin) < 1e100 && std::abs(box.end) < 1e100 && box.begin <= box.end;
}

template <typename Visitor>
void ForEachLane(const std::vector<LanePanel>& panels, Visitor visit) {
  for (const LanePanel& panel : panels) {
    for (const Lane& lane : panel.lanes) visit(lane);
  }
}

template <typename Visitor>
void ForEachBox(const std::vector<LanePanel>& panels, Visitor visit) {
  ForEachLane(panels, [&](const Lane& lane) {
    for (const LaneBox& box : lane.boxes) visit(box);
  });
}

PlotExtent ExtentOf(const LaneChart& chart) {
  PlotExtent extent;
  ForEachBox(chart.panels, [&](const LaneBox& box) {
    if (!CanBePlaced(box)) return;
    extent.Add(box.begin);
    extent.Add(box.end);
  });
  if (extent.empty()) extent.Add(0);
  if (extent.low() == extent.high()) extent.Widen(0, /*log=*/false);
  return extent;
}

// Returns the length that a box must have to be among the longest that are drawn.
double LeastLength(const LaneChart& chart) {
  std::vector<double> lengths;
  ForEachBox(chart.panels, [&](const LaneBox& box) {
    if (CanBePlaced(box)) lengths.push_back(LengthOf(box));
  });
  if (lengths.size() <= chart.most_boxes) return 0;
  const auto place = lengths.begin() + static_cast<ptrdiff_t>(chart.most_boxes);
  std::nth_element(lengths.begin(), place, lengths.end(), std::greater<double>());
  return std::nextafter(*place, INFINITY);
}

int LanesHeight(const LaneChart& chart) {
  int height = kTop;
  for (const LanePanel& panel : chart.panels) {
    height +=
        (panel.title.empty() ? 0 : kTitle) + static_cast<int>(panel.lanes.size()) * (kLane + kGap);
  }
  return height;
}

class Picture {
 public:
  explicit Picture(const LaneChart& chart)
      : chart_(chart),
        left_(LeftOf(chart)),
        right_(chart.frame.width - kRight),
        axis_(ExtentOf(chart), /*log=*/false, left_, right_),
        least_length_(LeastLength(chart)) {}

  std::string Draw() {
    for (const LanePanel& panel : chart_.panels) {
      if (!panel.title.empty()) {
        Append("<text class=\"title\" x=\"%d\" y=\"%d\">%s</text>\n", left_, top_ + 20,
               MarkupText(panel.title));
        top_ += kTitle;
      }
      for (const Lane& lane : panel.lanes) DrawLane(lane);
    }
    for (double tick : axis_.Ticks(8)) {
      Append("<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>\n", axis_.Pixel(tick),
             top_ + 14, PlotTickLabel(tick));
    }
    Append("<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">%s</text>\n", (left_ + right_) / 2,
           top_ + 34, MarkupText(chart_.x_label));
    return std::move(svg_);
  }

  std::string DrawLegend() {
    int x = left_;
    const int y = LanesHeight(chart_) + kScale;
    for (const LaneKind& kind : KindsThere(chart_.panels, chart_.kinds)) {
      Append("<rect class=\"%s\" x=\"%d\" y=\"%d\" width=\"12\" height=\"12\"/>",
             PictureClass('f', kind.color), x, y);
      Append("<text x=\"%d\" y=\"%d\">%s</text>\n", x + 17, y + 10, MarkupText(kind.name));
      x += 40 + static_cast<int>(kLetter * static_cast<double>(kind.name.size()));
    }
    return std::move(svg_);
  }

 private:
  static int LeftOf(const LaneChart& chart) {
    size_t longest = 0;
    ForEachLane(chart.panels,
                [&](const Lane& lane) { longest = std::max(longest, lane.name.size()); });
    return LaneMargins(longest) - kRight;
  }

  template <typename... Args>
  void Append(const absl::FormatSpec<Args...>& format, const Args&... args) {
    absl::StrAppendFormat(&svg_, format, args...);
  }

  void DrawLane(const Lane& lane) {
    Append("<rect class=\"idle\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"/>", left_, top_,
           right_ - left_, kLane);
    Append("<text x=\"%d\" y=\"%d\" text-anchor=\"end\">%s</text>\n", left_ - 8,
           top_ + kLane / 2 + 4, MarkupText(lane.name));
    for (const LaneBox& box : lane.boxes) {
      if (!CanBePlaced(box) || LengthOf(box) < least_length_) continue;
      if (axis_.Pixel(box.end) - axis_.Pixel(box.begin) >= kNarrowest) DrawBox(box);
    }
    top_ += kLane + kGap;
  }

  void DrawBox(const LaneBox& box) {
    const double x = axis_.Pixel(box.begin), width = axis_.Pixel(box.end) - x;
    const int y = top_ + (box.inner ? kLane / 2 : 0), height = box.inner ? kLane / 2 : kLane;
    Append(
        "<g><title>%s</title><rect class=\"%s\" x=\"%.1f\" y=\"%d\" width=\"%.1f\" "
        "height=\"%d\"",
        MarkupText(box.title), PictureClass('f', box.color), x, y, std::max(width, 0.5), height);
    if (box.opacity != 1) Append(" fill-opacity=\"%.2f\"", box.opacity);
    svg_ += "/>";
    if (!box.label.empty() && width >= kLetter * static_cast<double>(box.label.size()) + 2) {
      Append("<text class=\"inside\" x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>",
             x + width / 2, y + height / 2 + 4, MarkupText(box.label));
    }
    svg_ += "</g>\n";
  }

  const LaneChart& chart_;
  const int left_, right_;
  const PlotAxis axis_;
  const double least_length_;
  int top_ = kTop;  // place of the lane that is drawn
  std::string svg_;
};

PictureFrame FrameOf(const LaneChart& chart, int more) {
  PictureFrame frame = chart.frame;
  frame.height = LanesHeight(chart) + kScale + more;
  return frame;
}

}  // namespace

int LaneMargins(size_t letters) {
  return 16 + static_cast<int>(kLetter * static_cast<double>(letters)) + kRight;
}

std::string LaneChartAlone(const LaneChart& chart) {
  return absl::StrCat(BeginPictureAlone(FrameOf(chart, kLegend)), Picture(chart).Draw(),
                      Picture(chart).DrawLegend(), kEndPicture);
}

std::string LaneChartInPage(const LaneChart& chart, absl::string_view id) {
  return absl::StrCat(BeginPictureInPage(FrameOf(chart, 0), id), Picture(chart).Draw(),
                      kEndPicture);
}

std::vector<LaneKind> KindsThere(const std::vector<LanePanel>& panels,
                                 const std::vector<LaneKind>& kinds) {
  std::vector<LaneKind> there;
  for (const LaneKind& kind : kinds) {
    bool is_there = false;
    ForEachBox(panels, [&](const LaneBox& box) { is_there |= box.color == kind.color; });
    if (is_there) there.push_back(kind);
  }
  return there;
}

}  // namespace megatron
