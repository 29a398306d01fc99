#include "tools/calibration/check_report.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace megatron {
namespace {

constexpr double kGoodError = 0.1;
// Beside a run that counts others had no larger share of the cores, and cores lost no larger share
// of their calibrated speed.
constexpr double kDisturbed = 0.04;
constexpr double kSlow = 0.1;
// The part of a step that is memory's in the mix by which the cores' speed is told.
constexpr double kMemoryPart = 0.25;
// The fewest candidates that are left in a search for the fastest.
constexpr size_t kLeastLeft = 4;

double Quantile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values[size_t(std::lround(share * double(values.size() - 1)))];
}

bool Tie(const CheckedRow& a, const CheckedRow& b) {
  return Quantile(a.measured, 0.25) <= Quantile(b.measured, 0.75) &&
         Quantile(b.measured, 0.25) <= Quantile(a.measured, 0.75);
}

std::string Regret(const std::string& model, const std::vector<const CheckedRow*>& rows) {
  const CheckedRow* chosen = rows[0];
  const CheckedRow* best = rows[0];
  for (const CheckedRow* row : rows) {
    if (row->predicted < chosen->predicted) chosen = row;
    if (MedianOf(row->measured) < MedianOf(best->measured)) best = row;
  }
  return absl::StrFormat("%s: chosen %s, fastest %s, regret %.1f %%%s\n", model, chosen->layout,
                         best->layout,
                         100 * (MedianOf(chosen->measured) / MedianOf(best->measured) - 1),
                         chosen != best && Tie(*chosen, *best) ? ", a tie" : "");
}

// Returns the runs that nothing disturbed; if there are none, the least disturbed one.
std::vector<CheckedRun> CountedRuns(const std::vector<CheckedRun>& runs) {
  std::vector<CheckedRun> counted;
  for (const CheckedRun& run : runs) {
    if (!run.is_disturbed()) counted.push_back(run);
  }
  if (!counted.empty() || runs.empty()) return counted;
  return {*std::min_element(runs.begin(), runs.end(), [](const CheckedRun& a, const CheckedRun& b) {
    return a.others + a.lost < b.others + b.lost;
  })};
}

}  // namespace

int Undisturbed(const std::vector<CheckedRun>& runs) {
  return int(std::count_if(runs.begin(), runs.end(),
                           [](const CheckedRun& run) { return !run.is_disturbed(); }));
}

bool CheckedRun::is_disturbed() const { return !(others <= kDisturbed && lost <= kSlow); }

double LostSpeed(double products, double memory) {
  return 1 - 1 / ((1 - kMemoryPart) / products + kMemoryPart / memory);
}

std::vector<double> RunsThatCount(const std::vector<CheckedRun>& runs) {
  std::vector<double> seconds;
  for (const CheckedRun& run : CountedRuns(runs)) seconds.push_back(run.seconds);
  return seconds;
}

std::vector<double> AtCalibratedSpeed(const std::vector<CheckedRun>& runs) {
  std::vector<double> seconds;
  for (const CheckedRun& run : CountedRuns(runs)) seconds.push_back(run.seconds * (1 - run.lost));
  return seconds;
}

double MedianOf(std::vector<double> values) { return Quantile(std::move(values), 0.5); }

Implementation RefitProgram(const Implementation& program, const std::vector<CheckedRow>& rows,
                            const PredictRow& predict) {
  Implementation best = program;
  double least = INFINITY;
  for (double efficiency = 0.5; efficiency <= 1.2; efficiency += 0.01) {
    for (double seconds = 0; seconds <= 0.03; seconds += 0.001) {
      Implementation tried = program;
      tried.set_measured_efficiency(efficiency);
      tried.set_step_seconds(seconds);
      double sum = 0;
      for (size_t i = 0; i < rows.size(); i += 4) {
        if (rows[i].measured.empty()) continue;
        sum += std::abs(std::log(predict(tried, int(i)) / MedianOf(rows[i].measured)));
      }
      if (sum < least) {
        least = sum;
        best = tried;
      }
    }
  }
  return best;
}

absl::optional<size_t> NextToRun(const std::vector<std::vector<CheckedRun>>& runs, int rounds) {
  std::vector<size_t> left(runs.size());
  std::iota(left.begin(), left.end(), size_t{0});
  for (int round = 1; round <= rounds; ++round) {
    for (const size_t i : left) {
      if (Undisturbed(runs[i]) < round && int(runs[i].size()) < kTriesOfARun * round) return i;
    }
    std::stable_sort(left.begin(), left.end(), [&](size_t a, size_t b) {
      return MedianOf(RunsThatCount(runs[a])) < MedianOf(RunsThatCount(runs[b]));
    });
    left.resize(std::min(left.size(), std::max(kLeastLeft, (left.size() + 1) / 2)));
    if (std::find(left.begin(), left.end(), 0) == left.end()) left.push_back(0);
    std::sort(left.begin(), left.end());
  }
  return absl::nullopt;
}

std::string ChoiceReport(const std::string& model, const std::vector<std::string>& layouts,
                         const std::vector<std::vector<CheckedRun>>& runs) {
  size_t most = 0;
  for (const auto& of_layout : runs) most = std::max(most, RunsThatCount(of_layout).size());
  std::vector<CheckedRow> rows;
  std::string text;
  for (size_t i = 0; i < runs.size(); ++i) {
    const std::vector<double> seconds = RunsThatCount(runs[i]);
    if (i > 0 && seconds.size() < most) continue;
    // The first one is the layout that was chosen.
    rows.push_back({model, layouts[i], seconds, i == 0 ? 0.0 : 1.0, Undisturbed(runs[i]) == 0});
    absl::StrAppendFormat(&text, "%6.0f ms  %s%s\n", 1e3 * MedianOf(seconds), layouts[i],
                          rows.back().is_disturbed ? "  disturbed" : "");
  }
  std::vector<const CheckedRow*> pointers;
  for (const CheckedRow& row : rows) pointers.push_back(&row);
  return text + Regret(model, pointers);
}

std::string CheckReport(const std::vector<CheckedRow>& rows) {
  std::string text = absl::StrFormat("%-9s %-20s %4s %9s %9s %8s %7s\n", "model", "layout", "runs",
                                     "measured", "predicted", "spread", "error");
  std::map<std::string, std::vector<const CheckedRow*>> models;
  std::vector<double> errors;
  for (const CheckedRow& row : rows) {
    if (row.measured.empty()) continue;
    models[row.model].push_back(&row);
    const double measured = MedianOf(row.measured);
    const double error = row.predicted / measured - 1;
    errors.push_back(std::abs(error));
    const double spread = Quantile(row.measured, 0.75) - Quantile(row.measured, 0.25);
    absl::StrAppendFormat(&text, "%-9s %-20s %4d %6.0f ms %6.0f ms %6.0f %% %+5.1f %%%s\n",
                          row.model, row.layout, row.measured.size(), 1e3 * measured,
                          1e3 * row.predicted, 100 * spread / measured, 100 * error,
                          row.is_disturbed ? "  disturbed" : "");
  }
  if (errors.empty()) return "No layout has run.\n";
  const auto good =
      std::count_if(errors.begin(), errors.end(), [](double error) { return error <= kGoodError; });
  double sum = 0;
  for (double error : errors) sum += error;
  absl::StrAppendFormat(&text,
                        "%d of %d layouts (%.0f %%) within 10 %%; mean %.1f %%, median %.1f "
                        "%%, worst %.1f %%\n",
                        good, errors.size(), 100.0 * double(good) / double(errors.size()),
                        100 * sum / double(errors.size()), 100 * MedianOf(errors),
                        100 * *std::max_element(errors.begin(), errors.end()));
  for (const auto& [model, its_rows] : models) text += Regret(model, its_rows);
  return text;
}

}  // namespace megatron
