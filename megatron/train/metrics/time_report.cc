#include "megatron/train/metrics/time_report.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "megatron/base/median.h"

namespace megatron {
namespace {

using Share = TimeReport::Share;

// The order in which categories are printed.
constexpr TimeCategory kOrder[] = {
    TimeCategory::kCompute,        TimeCategory::kTensorParallel, TimeCategory::kContextParallel,
    TimeCategory::kExpertParallel, TimeCategory::kDataParallel,   TimeCategory::kPipelineParallel,
    TimeCategory::kWorld,          TimeCategory::kBubble,         TimeCategory::kOptimizer,
    TimeCategory::kData,           TimeCategory::kCheckpoint,     TimeCategory::kEvaluation,
    TimeCategory::kHost,           TimeCategory::kOther};
static_assert(sizeof(kOrder) / sizeof(kOrder[0]) == kNumTimeCategories);

constexpr double kMiB = 1 << 20;
constexpr double kLeastPrinted = 0.0005;  // the least share that is not printed as 0.0
// A rank is not named after a few short steps, which are as slow as whatever else the machine did.
constexpr int64_t kFewIterations = 3;
constexpr int64_t kLongNanoseconds = int64_t{10} * 1000 * 1000 * 1000;
constexpr double kLeastExcess = 0.02;  // the least excess that is more than noise

// Returns the share of time that `part(rank)` takes.
template <typename Part>
Share ShareOf(const std::vector<RankTimes>& ranks, Part part) {
  Share share;
  for (const RankTimes& rank : ranks) {
    const double value =
        static_cast<double>(part(rank)) / static_cast<double>(std::max<int64_t>(rank.total(), 1));
    const bool first = &rank == &ranks.front();
    share.mean += value / static_cast<double>(ranks.size());
    share.least = first ? value : std::min(share.least, value);
    share.most = first ? value : std::max(share.most, value);
  }
  return share;
}

void FindSlowest(TimeReport* report) {
  std::map<int64_t, std::vector<int64_t>> work;  // each stage: its ranks' own work
  for (const RankTimes& rank : report->ranks) work[rank.stage].push_back(rank.work());
  const bool alone = work.size() == report->ranks.size();
  if (alone) {
    std::vector<int64_t> all;
    for (const RankTimes& rank : report->ranks) all.push_back(rank.work());
    for (auto& [stage, values] : work) values = all;
  }
  for (size_t i = 0; i < report->ranks.size(); ++i) {
    const RankTimes& rank = report->ranks[i];
    const auto median = static_cast<double>(std::max<int64_t>(LowerMedian(work[rank.stage]), 1));
    const double excess = static_cast<double>(rank.work()) / median - 1;
    if (i > 0 && excess <= report->slowest_excess) continue;
    report->slowest_rank = static_cast<int>(i);
    report->slowest_excess = excess;
  }
}

std::string RankName(const TimeReport& report, size_t rank) {
  return absl::StrCat("rank ", rank, " on ", report.ranks[rank].host.data());
}

std::string FormatShare(const char* name, const Share& share) {
  constexpr double kSame = 0.005;
  std::string text = absl::StrFormat(" %s %.1f", name, share.mean * 100);
  if (share.most - share.least >= kSame)
    absl::StrAppendFormat(&text, " (%.1f to %.1f)", share.least * 100, share.most * 100);
  return absl::StrCat(text, " |");
}

// Returns the number of the rank with the most of it.
size_t RankWithMost(const TimeReport& report, int64_t RankTimes::*bytes) {
  size_t most = 0;
  for (size_t i = 1; i < report.ranks.size(); ++i) {
    if (report.ranks[i].*bytes > report.ranks[most].*bytes) most = i;
  }
  return most;
}

std::string FormatBytes(const char* name, const TimeReport& report, int64_t RankTimes::*bytes) {
  const RankTimes& most = report.ranks[RankWithMost(report, bytes)];
  return absl::StrFormat(" %s %.1f |", name, static_cast<double>(most.*bytes) / kMiB);
}

}  // namespace

TimeReport MakeTimeReport(std::vector<RankTimes> ranks, int64_t iterations) {
  TimeReport report;
  report.ranks = std::move(ranks);
  report.iterations = iterations;
  for (int i = 0; i < kNumTimeCategories; ++i) {
    report.shares[i] =
        ShareOf(report.ranks, [i](const RankTimes& rank) { return rank.by_category[i]; });
  }
  report.communication =
      ShareOf(report.ranks, [](const RankTimes& rank) { return rank.communication(); });
  report.hidden = ShareOf(report.ranks, [](const RankTimes& rank) { return rank.hidden; });
  FindSlowest(&report);
  return report;
}

void AddTimes(const TimeReport& report, int timing_log_level, StepMetrics* step) {
  step->times = &report;
  TimeShares& shares = step->time_shares;
  for (int i = 0; i < kNumTimeCategories; ++i) {
    const auto category = static_cast<TimeCategory>(i);
    const bool between_ranks = IsCommunication(category) || category == TimeCategory::kBubble;
    if (report.shares[i].most == 0 && between_ranks) continue;
    shares.categories[i] = report.shares[i].mean;
    if (report.ranks.size() == 1) continue;
    shares.least[i] = report.shares[i].least;
    shares.most[i] = report.shares[i].most;
  }
  if (report.ranks.size() > 1) {
    shares.communication = report.communication.mean;
    shares.hidden = report.hidden.mean;
    shares.slowest_rank = report.slowest_rank;
    shares.slowest_excess = report.slowest_excess;
  }
  for (int timer = 0; timer < kNumTimers; ++timer) {
    int64_t most = 0;
    for (const RankTimes& rank : report.ranks) most = std::max(most, rank.timers[timer]);
    if (Timers()[timer].level > timing_log_level || most == 0) continue;
    step->timers.push_back({Timers()[timer].tag, static_cast<double>(most) * 1e-9 /
                                                     static_cast<double>(report.iterations)});
  }
}

std::string FormatTimeLine(const TimeReport& report) {
  std::string text = " time (%):";
  for (const TimeCategory category : kOrder) {
    const Share& share = report.shares[static_cast<int>(category)];
    if (share.most >= kLeastPrinted) absl::StrAppend(&text, FormatShare(Name(category), share));
  }
  if (report.ranks.size() == 1) return text;
  absl::StrAppend(&text, FormatShare("all communication", report.communication));
  if (report.hidden.most >= kLeastPrinted)
    absl::StrAppend(&text, FormatShare("hidden", report.hidden));
  if (report.slowest_excess < kLeastExcess) return text;
  if (report.iterations < kFewIterations && report.ranks[0].total() < kLongNanoseconds) return text;
  absl::StrAppendFormat(&text, " slowest: %s, +%.1f",
                        RankName(report, static_cast<size_t>(report.slowest_rank)),
                        report.slowest_excess * 100);
  return text;
}

std::string FormatMemoryLine(const TimeReport& report) {
  std::string text = " memory of a rank (MiB):";
  absl::StrAppend(&text, FormatBytes("held", report, &RankTimes::held_bytes));
  absl::StrAppend(&text, FormatBytes("peak", report, &RankTimes::peak_bytes));
  absl::StrAppend(&text, FormatBytes("planned", report, &RankTimes::planned_bytes));
  if (report.ranks.size() > 1) {
    absl::StrAppend(
        &text, " the most: ", RankName(report, RankWithMost(report, &RankTimes::peak_bytes)), " |");
  }
  const size_t fullest = RankWithMost(report, &RankTimes::device_used_bytes);
  const RankTimes& rank = report.ranks[fullest];
  if (rank.device_bytes > 0) {
    absl::StrAppendFormat(&text, " GPU of %s: %.1f of %.1f |", RankName(report, fullest),
                          static_cast<double>(rank.device_used_bytes) / kMiB,
                          static_cast<double>(rank.device_bytes) / kMiB);
  }
  return text;
}

std::string FormatTimers(const TimeReport& report, int level, TimerOption option) {
  std::vector<std::vector<double>> milliseconds;
  for (const RankTimes& rank : report.ranks) {
    milliseconds.emplace_back();
    for (const int64_t nanoseconds : rank.timers) {
      milliseconds.back().push_back(static_cast<double>(nanoseconds) * 1e-6 /
                                    static_cast<double>(report.iterations));
    }
  }
  return FormatTimers(milliseconds, level, option);
}

int64_t PeakBytes(const TimeReport& report) {
  return report.ranks[RankWithMost(report, &RankTimes::peak_bytes)].peak_bytes;
}

}  // namespace megatron
