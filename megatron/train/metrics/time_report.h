// Where the time of all ranks went between two log lines, and what memory they hold: the figures
// that metrics have of it, and the lines that are printed below a log line.
#ifndef MEGATRON_TRAIN_METRICS_TIME_REPORT_H_
#define MEGATRON_TRAIN_METRICS_TIME_REPORT_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "megatron/tensor/trace/time_category.h"
#include "megatron/train/metrics/rank_times.h"
#include "megatron/train/metrics/step_metrics.h"
#include "megatron/train/metrics/timers.h"

namespace megatron {

struct TimeReport {
  // A share of a rank's time, from 0 to 1: the mean over ranks, the least and the most.
  struct Share {
    double mean = 0, least = 0, most = 0;
  };
  std::array<Share, kNumTimeCategories> shares;
  // Communication of all groups for which computing waits, and that which is hidden behind it.
  Share communication, hidden;

  // The rank whose own work took longest beside the median of the ranks of its pipeline stage, or
  // of all ranks where stages have one each; its excess is the share above the median.
  int slowest_rank = 0;
  double slowest_excess = 0;

  std::vector<RankTimes> ranks;
  int64_t iterations = 1;  // number of iterations that `ranks` are the times of
};

// `ranks` are those of all ranks over so many iterations, or of one after a failure.
TimeReport MakeTimeReport(std::vector<RankTimes> ranks, int64_t iterations);

// Gives the step the figures that metrics have of it: the shares, and the timers up to this level.
void AddTimes(const TimeReport& report, int timing_log_level, StepMetrics* step);

// Returns " time (%): compute 71.2 (68.0 to 75.1) | tp 8.1 | ... | slowest: rank 3 on gpu08,
// +10.2". A share that would be 0.0 on all ranks is left out, and so are the least and the most
// where ranks differ by less than half a percent, and the slowest rank if it is less than 2 % above
// its peers, or after fewer than three steps that took less than 10 seconds.
std::string FormatTimeLine(const TimeReport& report);

// Returns " memory of a rank (MiB): held 812.0 | peak 924.5, rank 3 on gpu08 | planned 924.5 |".
std::string FormatMemoryLine(const TimeReport& report);

// Returns the text of Megatron's timers, in milliseconds per iteration; empty at level 0.
std::string FormatTimers(const TimeReport& report, int level, TimerOption option);

// Returns the most memory that a rank has held so far.
int64_t PeakBytes(const TimeReport& report);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_METRICS_TIME_REPORT_H_
