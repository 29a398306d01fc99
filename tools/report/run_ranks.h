// Where the time of each rank went, from the file that RankTimesWriter writes beside metrics.jsonl
// (megatron/train/metrics/rank_times_writer.h).
//
// Any bytes may be in it.
#ifndef MEGATRON_TOOLS_REPORT_RUN_RANKS_H_
#define MEGATRON_TOOLS_REPORT_RUN_RANKS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace megatron::report {

struct RankRow {
  std::string host;
  int64_t stage = 0;
  std::map<std::string, double> seconds;  // by category of time
  std::vector<double> work;  // seconds of a step, in each interval; empty if it is not known
};

struct CallRow {
  std::string group, operation;
  double ranks = 0, calls = 0, bytes = 0, time = 0, transfer = 0, waiting = 0;
  double algorithm_bandwidth = 0, bus_bandwidth = 0;  // bytes per second
};

// What a step would take under a condition: "if the slowest rank worked like its peers: rank 3".
struct ReplayedStep {
  double seconds = 0;
  std::string condition;
};

struct RunRanks {
  double iteration = 0;               // the last one that is counted
  std::vector<RankRow> ranks;         // at least two
  std::vector<double> intervals;      // the last iteration of each
  std::vector<CallRow> calls;         // empty until the run has ended
  double measured = 0, replayed = 0;  // seconds of a step; 0: it was not replayed
  std::vector<ReplayedStep> savings;

  // Limits of what is read; more is left out.
  static constexpr size_t kMostRanks = 4096, kMostIntervals = 64, kMostRows = 256;
};

// Returns kInvalidArgument if the text has no ranks.
absl::StatusOr<RunRanks> ParseRunRanks(absl::string_view text);

}  // namespace megatron::report

#endif  // MEGATRON_TOOLS_REPORT_RUN_RANKS_H_
