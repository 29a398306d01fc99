// The numbers that a run is judged by.
#ifndef MEGATRON_TOOLS_REPORT_SUMMARY_H_
#define MEGATRON_TOOLS_REPORT_SUMMARY_H_

#include <optional>
#include <string>
#include <vector>

#include "tools/report/document.h"
#include "tools/report/read_run.h"

namespace megatron::report {

struct SummaryRow {
  std::string label;
  std::string value;
  std::string note;      // for a tile; may be empty
  bool is_main = false;  // one of the few for the top of a page
};

// Returns what the run has, in one order for all runs.
std::vector<SummaryRow> Summarize(const RunRecord& run);

// Returns the rows of all runs side by side.
Table SummaryTable(const std::vector<RunRecord>& runs);

// Returns the mean of the last 2 % of the points, at least one; nothing if there is none.
std::optional<double> LastValue(const PlotPoints& points);

}  // namespace megatron::report

#endif  // MEGATRON_TOOLS_REPORT_SUMMARY_H_
