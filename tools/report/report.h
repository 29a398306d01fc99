// The report about one run, or about several side by side.
#ifndef MEGATRON_TOOLS_REPORT_REPORT_H_
#define MEGATRON_TOOLS_REPORT_REPORT_H_

#include <vector>

#include "tools/report/document.h"
#include "tools/report/read_run.h"

namespace megatron::report {

// More runs than there are colors cannot be told apart.
inline constexpr size_t kMostRuns = 6;

// What a run has no data for is left out, and a section at the end says how to get it. There are
// from 1 to kMostRuns runs.
Document ReportOf(const std::vector<RunRecord>& runs);

}  // namespace megatron::report

#endif  // MEGATRON_TOOLS_REPORT_REPORT_H_
