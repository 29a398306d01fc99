// Predictions beside what was measured of the same layouts.
#ifndef TOOLS_CALIBRATION_CHECK_REPORT_H_
#define TOOLS_CALIBRATION_CHECK_REPORT_H_

#include <functional>
#include <string>
#include <vector>

#include "megatron/plan/plan_facts.pb.h"

namespace megatron {

struct CheckedRow {
  std::string model;
  std::string layout;
  std::vector<double> measured;  // seconds of a step, of each run
  double predicted = 0;
};

// Seconds of a step of row `row`, with a program's constants.
using PredictRow = std::function<double(const Implementation& program, int row)>;

double MedianOf(std::vector<double> values);

// Returns the program with the two constants, measured_efficiency and step_seconds, that make the
// sum of the logarithms' absolute errors over every fourth of these rows the least.
Implementation RefitProgram(const Implementation& program, const std::vector<CheckedRow>& rows,
                            const PredictRow& predict);

// Returns the table, the share of rows within 10 %, and for each model how much longer the layout
// takes that is predicted to be the fastest than the fastest one. Two layouts tie where the middle
// halves of their runs overlap. Rows without a run are left out.
std::string CheckReport(const std::vector<CheckedRow>& rows);

}  // namespace megatron

#endif  // TOOLS_CALIBRATION_CHECK_REPORT_H_
