// Draws what was predicted beside what was measured.
#ifndef TOOLS_PLAN_PREDICTED_CHART_H_
#define TOOLS_PLAN_PREDICTED_CHART_H_

#include <string>

#include "megatron/plan/predict_rows.h"

namespace megatron {

// Returns an SVG picture of the rows, from the least to the greatest measured value, which needs no
// other file.
std::string PredictedChart(const std::string& title, ComparedColumn column);

}  // namespace megatron

#endif  // TOOLS_PLAN_PREDICTED_CHART_H_
