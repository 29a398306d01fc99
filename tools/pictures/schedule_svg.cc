#include "tools/pictures/schedule_svg.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"

namespace megatron {
namespace {

constexpr int kLane = 30, kGap = 6, kLeft = 64, kRight = 24, kTop = 52, kBottom = 40;
constexpr double kNarrowest = 14, kWidest = 1400;  // pixels: of an action, of all

// Okabe and Ito's colors, which the color-blind tell apart.
absl::string_view Color(ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward:
      return "#56B4E9";
    case ActionKind::kBackward:
    case ActionKind::kBackwardInput:
      return "#E69F00";
    case ActionKind::kBackwardWeight:
      return "#009E73";
  }
  return "";
}

absl::string_view Name(ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward:
      return "forward";
    case ActionKind::kBackward:
      return "backward";
    case ActionKind::kBackwardInput:
      return "backward, inputs";
    case ActionKind::kBackwardWeight:
      return "backward, weights";
  }
  return "";
}

std::string Escaped(absl::string_view text) {
  return absl::StrReplaceAll(text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}});
}

class Picture {
 public:
  explicit Picture(const std::vector<SchedulePanel>& panels) : panels_(panels) {
    double longest = 0, shortest = 0;
    int height = kBottom;
    for (const SchedulePanel& panel : panels) {
      longest = std::max(longest, panel.report.time);
      height += HeightOf(panel);
      for (const Timeline& stage : panel.report.stages) {
        for (const TimedAction& timed : stage) {
          const double length = timed.end - timed.start;
          if (shortest == 0 || (length > 0 && length < shortest)) shortest = length;
        }
      }
    }
    const double wished = shortest > 0 ? kNarrowest * longest / shortest : kWidest;
    scale_ = longest > 0 ? std::min(wished, kWidest) / longest : 0;
    const int width = kLeft + kRight + std::max(520, static_cast<int>(longest * scale_));
    absl::StrAppendFormat(&svg_,
                          "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
                          "viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" font-size=\"11\">\n"
                          "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
                          width, height, width, height);
  }

  std::string Draw() && {
    for (const SchedulePanel& panel : panels_) {
      absl::StrAppendFormat(&svg_, "<text x=\"%d\" y=\"%d\" font-size=\"16\">%s</text>\n", kLeft,
                            top_ + 28, Escaped(panel.title));
      for (size_t stage = 0; stage < panel.report.stages.size(); ++stage)
        DrawStage(panel.report, stage);
      top_ += HeightOf(panel);
    }
    DrawLegend();
    return std::move(svg_) + "</svg>\n";
  }

 private:
  static int HeightOf(const SchedulePanel& panel) {
    return kTop + static_cast<int>(panel.report.stages.size()) * (kLane + kGap);
  }
  int Lane(size_t stage) const { return top_ + kTop + static_cast<int>(stage) * (kLane + kGap); }

  void DrawStage(const ScheduleReport& report, size_t stage) {
    absl::StrAppendFormat(&svg_, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">stage %d</text>\n",
                          kLeft - 8, Lane(stage) + kLane / 2 + 4, stage);
    absl::StrAppendFormat(&svg_,
                          "<rect x=\"%d\" y=\"%d\" width=\"%.2f\" height=\"%d\" "
                          "fill=\"#f0f0f0\"/>\n",
                          kLeft, Lane(stage), report.time * scale_, kLane);
    for (const TimedAction& timed : report.stages[stage]) DrawAction(stage, timed);
  }

  void DrawAction(size_t stage, const TimedAction& timed) {
    const double x = kLeft + timed.start * scale_, width = (timed.end - timed.start) * scale_;
    absl::StrAppendFormat(
        &svg_,
        "<g><title>%s of micro-batch %d%s, %.4g to %.4g</title><rect x=\"%.2f\" y=\"%d\" "
        "width=\"%.2f\" height=\"%d\" fill=\"%s\" fill-opacity=\"%.2f\" stroke=\"white\"/>",
        Name(timed.action.kind), timed.action.microbatch,
        timed.action.chunk == 0 ? "" : absl::StrCat(" on chunk ", timed.action.chunk), timed.start,
        timed.end, x, Lane(stage), width, kLane, Color(timed.action.kind),
        1.0 / (1 + 0.6 * timed.action.chunk));
    const std::string label = absl::StrCat(timed.action.microbatch);
    if (width >= 7.0 * static_cast<double>(label.size())) {
      absl::StrAppendFormat(&svg_, "<text x=\"%.2f\" y=\"%d\" text-anchor=\"middle\">%s</text>",
                            x + width / 2, Lane(stage) + kLane / 2 + 4, label);
    }
    svg_ += "</g>\n";
  }

  void DrawLegend() {
    int x = kLeft;
    const int y = top_ + 12;
    for (ActionKind kind : {ActionKind::kForward, ActionKind::kBackward, ActionKind::kBackwardInput,
                            ActionKind::kBackwardWeight}) {
      if (!Has(kind)) continue;
      absl::StrAppendFormat(&svg_,
                            "<rect x=\"%d\" y=\"%d\" width=\"12\" height=\"12\" fill=\"%s\"/>"
                            "<text x=\"%d\" y=\"%d\">%s</text>\n",
                            x, y, Color(kind), x + 17, y + 10, Name(kind));
      x += 40 + 7 * static_cast<int>(Name(kind).size());
    }
  }

  bool Has(ActionKind kind) const {
    for (const SchedulePanel& panel : panels_) {
      for (const Timeline& stage : panel.report.stages) {
        for (const TimedAction& timed : stage) {
          if (timed.action.kind == kind) return true;
        }
      }
    }
    return false;
  }

  const std::vector<SchedulePanel>& panels_;
  double scale_ = 0;  // pixels for a unit of time
  int top_ = 0;       // place of the panel that is drawn
  std::string svg_;
};

}  // namespace

std::string ScheduleSvg(const std::vector<SchedulePanel>& panels) { return Picture(panels).Draw(); }

}  // namespace megatron
