#include "tools/pictures/plot_loss_svg.h"

#include <cstddef>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/pictures/line_chart.h"
#include "tools/pictures/markup_text.h"
#include "tools/pictures/plot_curve.h"

namespace megatron {
namespace {

using Points = std::vector<std::pair<double, double>>;

Points MeanOf(const std::vector<LossCurve>& runs, Points LossCurve::*points) {
  std::map<double, std::vector<double>> losses;
  for (const LossCurve& run : runs) {
    for (const auto& [iteration, loss] : run.*points) losses[iteration].push_back(loss);
  }
  Points mean;
  for (const auto& [iteration, all] : losses) {
    if (all.size() != runs.size()) continue;
    mean.emplace_back(iteration, std::accumulate(all.begin(), all.end(), 0.0) / all.size());
  }
  return mean;
}

}  // namespace

LossCurve MeanOf(const std::vector<LossCurve>& runs) {
  LossCurve mean;
  for (const LossCurve& run : runs)
    absl::StrAppend(&mean.name, mean.name.empty() ? "" : ", ", run.name);
  mean.train = MeanOf(runs, &LossCurve::train);
  mean.validation = MeanOf(runs, &LossCurve::validation);
  return mean;
}

std::string LossPlotSvg(const std::vector<LossCurve>& curves, const LossPlotOptions& options) {
  LineChart chart;
  chart.frame = {options.title, "Losses over iterations.", options.width, options.height};
  chart.x_label = "iteration";
  chart.y_label = "loss";
  chart.log_x = options.log_x;
  chart.log_y = options.log_y;
  for (size_t i = 0; i < curves.size(); ++i) {
    const int color = static_cast<int>(i);
    const std::string name = curves[i].name.empty() ? "" : curves[i].name + ", ";
    const CurveLook look =
        curves[i].train.size() >= kFewestPointsToSmooth ? CurveLook::kSmoothed : CurveLook::kLine;
    chart.curves.push_back({name + "training", curves[i].train, look, color});
    chart.curves.push_back({name + "validation", curves[i].validation, CurveLook::kDots, color});
  }
  return LineChartAlone(chart);
}

std::string LossPlotHtml(const std::vector<LossCurve>& curves, const LossPlotOptions& options) {
  return absl::StrCat("<!DOCTYPE html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\"><title>",
                      MarkupText(options.title), "</title></head>\n<body>\n",
                      LossPlotSvg(curves, options), "</body>\n</html>\n");
}

}  // namespace megatron
