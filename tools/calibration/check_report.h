// Predictions beside what was measured of the same layouts.
#ifndef TOOLS_CALIBRATION_CHECK_REPORT_H_
#define TOOLS_CALIBRATION_CHECK_REPORT_H_

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "absl/types/optional.h"
#include "megatron/plan/plan_facts.pb.h"

namespace megatron {

// A run of a layout, and what was wrong with the machine meanwhile.
struct CheckedRun {
  double seconds = 0;  // of a step
  double others = 0;   // the share of the cores that other processes had
  double lost = 0;     // LostSpeed() beside it
  double rest = 0;     // seconds of a step that its line of times counts as data, host and other

  bool is_disturbed() const;
};

// Returns the share of their calibrated speed that cores have lost in a mix of three parts of
// products and one of memory, whose rates are so many times those of the calibration. Below 0: the
// cores are faster.
double LostSpeed(double products, double memory);

// Returns how many of the runs nothing disturbed.
int Undisturbed(const std::vector<CheckedRun>& runs);

// A layout runs no more often than so many times the number of undisturbed runs that are wanted.
inline constexpr int kTriesOfARun = 3;

// Returns the seconds of the runs that nothing disturbed; if there are none, those of the least
// disturbed one.
std::vector<double> RunsThatCount(const std::vector<CheckedRun>& runs);

// Returns what the runs of RunsThatCount() would have taken if the cores had been as fast as when
// they were calibrated: a run of 100 ms beside which they had lost 5 % of their speed counts as 95.
std::vector<double> AtCalibratedSpeed(const std::vector<CheckedRun>& runs);

struct CheckedRow {
  std::string model;
  std::string layout;
  std::vector<double> measured;  // seconds of a step, of each run that counts
  double predicted = 0;
  bool is_disturbed = false;  // nothing but disturbed runs is there
};

// Seconds of a step of row `row`, with a program's constants.
using PredictRow = std::function<double(const Implementation& program, int row)>;

double MedianOf(std::vector<double> values);

// Returns the program with the two constants, measured_efficiency and step_seconds, that make the
// sum of the logarithms' absolute errors over every fourth of these rows the least.
Implementation RefitProgram(const Implementation& program, const std::vector<CheckedRow>& rows,
                            const PredictRow& predict);

// Returns the number of the candidate to run next in a search for the fastest one; none where it is
// over. All run once without being disturbed; then, `rounds` - 1 times, the faster half of those
// that are left, no fewer than 4 of them, and the first candidate.
absl::optional<size_t> NextToRun(const std::vector<std::vector<CheckedRun>>& runs, int rounds);

// Returns how much longer the first candidate takes than the fastest one of those that have run as
// often as any other, whose names are `layouts`. Expects that it has run.
std::string ChoiceReport(const std::string& model, const std::vector<std::string>& layouts,
                         const std::vector<std::vector<CheckedRun>>& runs);

// Returns the table, the share of rows within 10 %, and for each model how much longer the layout
// takes that is predicted to be the fastest than the fastest one. Two layouts tie where the middle
// halves of their runs overlap. Rows without a run are left out, and disturbed ones are marked.
std::string CheckReport(const std::vector<CheckedRow>& rows);

}  // namespace megatron

#endif  // TOOLS_CALIBRATION_CHECK_REPORT_H_
