#include "tools/plan/predicted_chart.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tools/pictures/line_chart.h"

namespace megatron {

std::string PredictedChart(const std::string& title, ComparedColumn column) {
  std::sort(column.rows.begin(), column.rows.end(),
            [](const ComparedRow& a, const ComparedRow& b) { return a.measured < b.measured; });
  LineChart chart;
  chart.frame.title = title;
  chart.frame.description = absl::StrCat(column.rows.size(), " rows: ", column.name,
                                         ", measured and predicted, the least measured one first.");
  chart.frame.width = 900;
  chart.frame.height = 360;
  chart.x_label = "rows, by what was measured";
  chart.y_label = column.name;
  chart.log_y = true;
  Curve measured = {"measured", {}, CurveLook::kLine, 0};
  Curve predicted = {"predicted", {}, CurveLook::kDots, 1};
  for (const ComparedRow& row : column.rows) {
    const double x = double(measured.points.size() + 1);
    measured.points.emplace_back(x, row.measured);
    predicted.points.emplace_back(x, row.predicted);
  }
  chart.curves = {measured, predicted};
  return LineChartAlone(chart);
}

}  // namespace megatron
