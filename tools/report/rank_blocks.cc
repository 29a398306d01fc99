#include "tools/report/rank_blocks.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "megatron/base/quantity.h"
#include "tools/report/numbers.h"

namespace megatron::report {
namespace {

constexpr size_t kMostColumns = 16;     // categories of a table
constexpr size_t kMostMapColumns = 24;  // intervals of a map
constexpr double kNoticeableShare = 1;  // percent of a rank's time
constexpr double kNoticeableWork = 0;   // milliseconds

double Total(const RankRow& rank) {
  double sum = 0;
  for (const auto& [category, seconds] : rank.seconds) sum += seconds;
  return sum;
}

double Percent(const RankRow& rank, const std::string& category) {
  const auto found = rank.seconds.find(category);
  const double total = Total(rank);
  return found == rank.seconds.end() || total <= 0 ? 0 : 100 * found->second / total;
}

// Returns the lower one of two medians, so that the slower of two ranks is above it.
double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<int64_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Returns the median of what the ranks of each rank's stage have, or of all ranks where stages have
// one each.
template <typename ValueOf>
std::vector<double> MediansOfPeers(const RunRanks& run, ValueOf value_of) {
  std::map<int64_t, std::vector<double>> values;
  std::vector<double> all;
  for (const RankRow& rank : run.ranks) {
    all.push_back(value_of(rank));
    values[rank.stage].push_back(all.back());
  }
  std::map<int64_t, double> of_stage;
  const double of_all = Median(all);
  for (const auto& [stage, list] : values)
    of_stage[stage] = values.size() == all.size() ? of_all : Median(list);
  std::vector<double> medians;
  for (const RankRow& rank : run.ranks) medians.push_back(of_stage[rank.stage]);
  return medians;
}

double MeanWork(const RankRow& rank) {
  if (rank.work.empty()) return 0;
  return std::accumulate(rank.work.begin(), rank.work.end(), 0.0) /
         static_cast<double>(rank.work.size());
}

// Returns the ranks that have rows: all, or those that differ most from their peers, ascending.
std::vector<size_t> RowsOf(const RunRanks& run) {
  const std::vector<double> medians = MediansOfPeers(run, MeanWork);
  std::vector<size_t> rows(run.ranks.size());
  std::iota(rows.begin(), rows.end(), 0);
  const auto excess = [&](size_t rank) { return MeanWork(run.ranks[rank]) - medians[rank]; };
  std::stable_sort(rows.begin(), rows.end(),
                   [&](size_t a, size_t b) { return excess(a) > excess(b); });
  rows.resize(std::min(rows.size(), kMostRankRows));
  std::sort(rows.begin(), rows.end());
  return rows;
}

std::string NameOf(const RunRanks& run, size_t rank) {
  return absl::StrCat(rank, " on ", run.ranks[rank].host, ", stage ", run.ranks[rank].stage);
}

// Returns the categories, the largest first.
std::vector<std::string> CategoriesOf(const RunRanks& run) {
  std::map<std::string, double> totals;
  for (const RankRow& rank : run.ranks) {
    for (const auto& [category, seconds] : rank.seconds) totals[category] += seconds;
  }
  std::vector<std::pair<double, std::string>> sorted;
  for (const auto& [category, total] : totals) sorted.emplace_back(-total, category);
  std::sort(sorted.begin(), sorted.end());
  std::vector<std::string> categories;
  for (const auto& [total, category] : sorted) {
    if (total < 0 && categories.size() < kMostColumns) categories.push_back(category);
  }
  return categories;
}

std::string OfSomeRanks(const RunRanks& run) {
  if (run.ranks.size() <= kMostRankRows) return "";
  return absl::StrCat(" Of ", run.ranks.size(), " ranks, those with the most work beside their ",
                      "peers.");
}

Table SharesTable(const RunRanks& run, const std::string& of_run) {
  Table table;
  table.caption = absl::StrCat("Percent of a rank's time", of_run);
  table.columns = {"rank"};
  const std::vector<size_t> rows = RowsOf(run);
  for (const size_t rank : rows) table.rows.push_back({NameOf(run, rank)});
  for (const std::string& category : CategoriesOf(run)) {
    table.columns.push_back(category);
    const auto value = [&](const RankRow& rank) { return Percent(rank, category); };
    const std::vector<double> medians = MediansOfPeers(run, value);
    for (size_t i = 0; i < rows.size(); ++i) {
      const double percent = value(run.ranks[rows[i]]);
      table.rows[i].emplace_back(absl::StrFormat("%.1f", percent),
                                 HeatOf(percent, medians[rows[i]], kNoticeableShare));
    }
  }
  table.note = absl::StrFormat(
      "From the last start of the program to iteration %.0f. Colored cells are 5, 10, 25 and 50 %% "
      "above the median of the ranks of the same pipeline stage.%s",
      run.iteration, OfSomeRanks(run));
  return table;
}

Table WorkMap(const RunRanks& run, const std::string& of_run) {
  Table table;
  table.caption = absl::StrCat("Own work of each rank, in milliseconds of a step", of_run);
  table.columns = {"rank"};
  const std::vector<size_t> rows = RowsOf(run);
  for (const size_t rank : rows) table.rows.push_back({NameOf(run, rank)});
  const size_t columns = std::min(run.intervals.size(), kMostMapColumns);
  for (size_t i = run.intervals.size() - columns; i < run.intervals.size(); ++i) {
    table.columns.push_back(absl::StrFormat("to %.0f", run.intervals[i]));
    const auto value = [&](const RankRow& rank) { return 1e3 * rank.work[i]; };
    const std::vector<double> medians = MediansOfPeers(run, value);
    for (size_t row = 0; row < rows.size(); ++row) {
      const double work = value(run.ranks[rows[row]]);
      table.rows[row].emplace_back(ShortNumber(work),
                                   HeatOf(work, medians[rows[row]], kNoticeableWork));
    }
  }
  table.note = absl::StrCat(
      "What a rank does without waiting for others: passes, the optimizer, data. A column is a "
      "part of the run, up to the iteration at its head. Colored cells are 5, 10, 25 and 50 % "
      "above the median of the ranks of the same pipeline stage.",
      OfSomeRanks(run));
  return table;
}

std::string Seconds(double seconds) { return absl::StrFormat("%.4g", seconds); }

Table SavingsTable(const RunRanks& run, const std::string& of_run) {
  Table table;
  table.caption = absl::StrCat("What a step would take", of_run);
  table.columns = {"condition", "seconds", "change"};
  for (const ReplayedStep& step : run.savings) {
    table.rows.push_back({step.condition, Seconds(step.seconds),
                          absl::StrFormat("%+.1f %%", 100 * (step.seconds / run.measured - 1))});
  }
  table.note = "Measured steps, played again with changed times.";
  return table;
}

}  // namespace

int HeatOf(double value, double median, double noticeable) {
  if (value - median <= noticeable) return 0;
  const double above = median > 0 ? value / median - 1 : 1;
  return (above > 0.05) + (above > 0.1) + (above > 0.25) + (above > 0.5);
}

std::vector<Block> RankBlocks(const RunRanks& run, const std::string& of_run) {
  std::vector<Block> blocks;
  if (run.measured > 0) {
    blocks.emplace_back(Paragraph{absl::StrCat(
        "A step took ", Seconds(run.measured), " s", of_run, "; its times, played again, take ",
        Seconds(run.replayed), " s.",
        run.savings.empty() ? " No rank, stage or group costs a hundredth of it." : "")});
    if (!run.savings.empty()) blocks.emplace_back(SavingsTable(run, of_run));
  }
  blocks.emplace_back(SharesTable(run, of_run));
  if (!run.intervals.empty()) blocks.emplace_back(WorkMap(run, of_run));
  return blocks;
}

std::vector<Block> CallBlocks(const RunRanks& run, const std::string& of_run) {
  if (run.calls.empty()) return {};
  Table table;
  table.caption = absl::StrCat("Calls with other ranks in the whole run", of_run);
  table.columns = {"group and operation", "ranks",      "calls",       "size",       "time, s",
                   "transfer, s",         "waiting, s", "algbw, GB/s", "busbw, GB/s"};
  for (const CallRow& call : run.calls) {
    const auto bandwidth = [](double value) {
      return value > 0 ? absl::StrFormat("%.2f", value * 1e-9) : "";
    };
    table.rows.push_back(
        {absl::StrCat(call.group, ", ", call.operation), absl::StrFormat("%.0f", call.ranks),
         absl::StrFormat("%.0f", call.calls), FormatBytes(static_cast<int64_t>(call.bytes)),
         absl::StrFormat("%.2f", call.time), absl::StrFormat("%.2f", call.transfer),
         absl::StrFormat("%.2f", call.waiting), bandwidth(call.algorithm_bandwidth),
         bandwidth(call.bus_bandwidth)});
  }
  table.note =
      "Means over the ranks, since the last start of the program. Transfer is what the calls take "
      "when no rank is late; bandwidths are those of the transfer, as nccl-tests count them.";
  return {std::move(table)};
}

}  // namespace megatron::report
