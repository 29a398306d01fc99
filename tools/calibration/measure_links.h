// Measures collectives between ranks that share this machine's cores, for the planner: calls
// between products, as a step has them.
#ifndef TOOLS_CALIBRATION_MEASURE_LINKS_H_
#define TOOLS_CALIBRATION_MEASURE_LINKS_H_

#include "absl/status/statusor.h"

namespace megatron {

// As Hardware (plan_facts.proto) has them: times are those of a rank that has a core.
struct LinkRates {
  double bytes_per_s = 0;
  double latency_us = 0;       // threads: of a call; processes: of each doubling of ranks
  double rank_latency_us = 0;  // threads alone: of each rank
  double lane_us = 0;          // threads alone: more of a call that another thread makes
};

absl::StatusOr<LinkRates> MeasureThreads(int cores);

// It starts processes, which it can't do once this process has threads.
absl::StatusOr<LinkRates> MeasureProcesses(int cores);

}  // namespace megatron

#endif  // TOOLS_CALIBRATION_MEASURE_LINKS_H_
