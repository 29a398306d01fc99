// What the times of a run's ranks show: where each rank's time went, which rank was slow when, what
// a step would take without that, and the calls between ranks.
#ifndef MEGATRON_TOOLS_REPORT_RANK_BLOCKS_H_
#define MEGATRON_TOOLS_REPORT_RANK_BLOCKS_H_

#include <string>
#include <vector>

#include "tools/report/document.h"
#include "tools/report/run_ranks.h"

namespace megatron::report {

// Captions end with `of_run`.

// A sentence and a table of what a step would take; a table of ranks by category, in percent of a
// rank's time; and a map of ranks by interval, warmer the more a rank works beside its peers. Ranks
// beyond kMostRankRows are left out, those that are most like their peers first.
std::vector<Block> RankBlocks(const RunRanks& run, const std::string& of_run);
constexpr size_t kMostRankRows = 64;

// The calls of the whole run; empty until it has ended.
std::vector<Block> CallBlocks(const RunRanks& run, const std::string& of_run);

// Returns how warm a cell is whose median over peers is `median`: 5 %, 10 %, 25 % and 50 % above.
// Differences below `noticeable` are not marked.
int HeatOf(double value, double median, double noticeable);

}  // namespace megatron::report

#endif  // MEGATRON_TOOLS_REPORT_RANK_BLOCKS_H_
