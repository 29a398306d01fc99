// The output of comm_bench: nccl-tests' table, JSON, and a self-contained picture of bandwidth
// against size.
#ifndef TOOLS_BANDWIDTH_COMM_BENCH_REPORT_H_
#define TOOLS_BANDWIDTH_COMM_BENCH_REPORT_H_

#include <string>
#include <vector>

#include "tools/bandwidth/comm_bench_measure.h"

namespace megatron {

std::string CommBenchTable(const CommBenchResult& result);

// {"backend": "tcp", "results": [{"operation": "all_reduce", "ranks": 4, ..., "rows": [...]}]}
std::string CommBenchJson(const std::string& backend, const std::vector<CommBenchResult>& results);

// Draws bus bandwidth over size, both on logarithmic scales, with a line for each operation, in
// place if that exists. Rows of size 0 are left out.
std::string CommBenchSvg(const std::string& title, const std::vector<CommBenchResult>& results);

}  // namespace megatron

#endif  // TOOLS_BANDWIDTH_COMM_BENCH_REPORT_H_
