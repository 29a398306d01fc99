#include "tools/watch/screen.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "megatron/base/quantity.h"
#include "megatron/train/metrics/metric_table.h"
#include "megatron/train/metrics/step_metrics.h"
#include "tools/pictures/plot_curve.h"
#include "tools/report/numbers.h"
#include "tools/watch/braille.h"

namespace megatron::watch {
namespace {

using report::MetricColumn;
using report::RunRecord;

constexpr int kLabelColumns = 9;     // beside a curve
constexpr size_t kRecentSteps = 50;  // the steps whose mean is the speed
constexpr size_t kMostEvents = 5;

// Characters that a terminal shows; the text is UTF-8.
int WidthOf(absl::string_view text) {
  return static_cast<int>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

// Returns the text without what a terminal would obey, and cut to the width.
std::string Fitted(absl::string_view text, int columns) {
  std::string fitted;
  int width = 0;
  for (const char c : text) {
    const bool begins = (c & 0xc0) != 0x80;
    if (begins && width == columns) break;
    width += begins ? 1 : 0;
    const unsigned char byte = static_cast<unsigned char>(c);
    fitted += byte < ' ' || byte == 0x7f ? '?' : c;
  }
  return fitted;
}

std::string Between(const std::string& left, const std::string& right, int columns) {
  const int blanks = columns - WidthOf(left) - WidthOf(right);
  if (blanks < 1) return Fitted(left, columns);
  return absl::StrCat(left, std::string(blanks, ' '), right);
}

const MetricColumn* Column(const RunRecord& run, absl::string_view key) {
  const MetricColumn* const column = run.metrics.Find(key);
  return column == nullptr || column->points.empty() ? nullptr : column;
}

std::optional<double> Last(const RunRecord& run, absl::string_view key) {
  const MetricColumn* const column = Column(run, key);
  if (column == nullptr) return std::nullopt;
  return column->points.back().second;
}

// Returns the mean over the last steps.
std::optional<double> Recent(const RunRecord& run, absl::string_view key) {
  const MetricColumn* const column = Column(run, key);
  if (column == nullptr) return std::nullopt;
  const size_t count = std::min(kRecentSteps, column->points.size());
  double sum = 0;
  for (size_t i = column->points.size() - count; i < column->points.size(); ++i)
    sum += column->points[i].second;
  return sum / static_cast<double>(count);
}

int64_t TrainIters(const RunRecord& run) {
  return run.config.text.empty() ? 0 : run.config.config.train().train_iters();
}

std::string PositionText(const RunRecord& run) {
  const int64_t last = run.metrics.last_iteration, all = TrainIters(run);
  if (all <= 0) return absl::StrCat("iteration ", last);
  return absl::StrFormat(
      "iteration %d of %d (%d %%)", last, all,
      static_cast<int>(100.0 * static_cast<double>(last) / static_cast<double>(all)));
}

// Returns "ETA 3 min 20 s", "done", or nothing where it is not known.
std::string TimeLeftText(const RunRecord& run) {
  const int64_t left = TrainIters(run) - run.metrics.last_iteration;
  const std::optional<double> elapsed = Recent(run, metric::kElapsed.key);
  if (TrainIters(run) <= 0 || !elapsed) return "";
  if (left <= 0) return "done";
  return "ETA " + report::ShortDuration(*elapsed / 1e3 * static_cast<double>(left));
}

// Returns the loss of the last step; one that is not a number is "NaN".
std::string LossText(const RunRecord& run) {
  const MetricColumn* const column = run.metrics.Find(kLmLossName);
  if (column == nullptr) return "none";
  const bool lost = !column->absent.empty() &&
                    (column->points.empty() || column->absent.back() > column->points.back().first);
  if (lost) return "NaN";
  return column->points.empty() ? "none" : absl::StrFormat("%.4f", column->points.back().second);
}

std::string NumbersText(const RunRecord& run) {
  std::vector<std::string> parts = {absl::StrCat(kLmLossName, " ", LossText(run))};
  const auto add = [&](absl::string_view name, std::optional<double> value,
                       absl::string_view unit = "") {
    if (value) parts.push_back(absl::StrCat(name, report::ShortNumber(*value), unit));
  };
  add("validation ", Last(run, EvaluationName(kLmLossName, /*on_test_set=*/false)));
  add("", Recent(run, metric::kTokensPerSecond.key), " tokens/s");
  if (const std::optional<double> mfu = Recent(run, metric::kMfu.key))
    parts.push_back(absl::StrFormat("MFU %.1f %%", 100 * *mfu));
  add("lr ", Last(run, metric::kLearningRate.key));
  add("grad-norm ", Last(run, metric::kGradNorm.key));
  return absl::StrJoin(parts, " | ");
}

// Returns a title and below it the curve with the ends of its scale, `rows` lines in all.
std::vector<std::string> Chart(const std::string& title, const PlotPoints& points, int columns,
                               int rows) {
  std::vector<std::string> lines = {Fitted(title, columns)};
  PlotExtent x, y;
  for (const auto& [at, value] : points) {
    x.Add(at);
    y.Add(value);
  }
  if (x.empty()) return lines;
  const std::vector<std::string> curve =
      BrailleCurve(points, x, y, columns - kLabelColumns - 1, rows - 1);
  for (size_t i = 0; i < curve.size(); ++i) {
    std::string label;
    if (i == 0) label = report::ShortNumber(y.high());
    if (i + 1 == curve.size() && i > 0) label = report::ShortNumber(y.low());
    lines.push_back(absl::StrFormat("%*s ", kLabelColumns, label) + curve[i]);
  }
  return lines;
}

std::vector<std::string> CurveOf(const RunRecord& run, absl::string_view key,
                                 const std::string& title, int columns, int rows) {
  const MetricColumn* const column = Column(run, key);
  if (column == nullptr) return Chart(title, {}, columns, rows);
  // Single steps differ by more than the curve's height.
  const bool smooth = key == metric::kTokensPerSecond.key && IsNoisy(column->points);
  return Chart(title, smooth ? SmoothedPoints(column->points) : column->points, columns, rows);
}

// Returns the largest shares of time as bars, each on a line.
std::vector<std::string> ShareLines(const RunRecord& run, int columns, size_t most) {
  std::vector<std::pair<double, std::string>> shares;
  for (int i = 0; i < kNumTimeCategories; ++i) {
    const std::string key = ShareMetric(static_cast<TimeCategory>(i)).key;
    const std::optional<double> share = Last(run, key);
    if (share && *share >= 0.005) shares.emplace_back(*share, key.substr(key.find('/') + 1));
  }
  std::sort(shares.rbegin(), shares.rend());
  if (shares.size() > most) shares.resize(most);
  std::vector<std::string> lines;
  const int most_blocks = std::max(1, columns - 18);
  for (const auto& [share, name] : shares) {
    const int blocks =
        std::clamp(static_cast<int>(std::lround(share * most_blocks)), 1, most_blocks);
    std::string bar;
    for (int i = 0; i < blocks; ++i) bar += "█";
    lines.push_back(absl::StrFormat("%10s %3.0f %% ", name, 100 * share) + bar);
  }
  return lines;
}

const MetricColumn* EventColumn(const RunRecord& run, absl::string_view tag) {
  for (const MetricColumn& column : run.events.columns) {
    if (column.key == tag && !column.points.empty()) return &column;
  }
  return nullptr;
}

// Returns the line of memory and of the slowest rank; empty where neither is known.
std::string StateLine(const RunRecord& run) {
  std::vector<std::string> parts;
  const auto add_memory = [&](const char* name, const Metric& metric) {
    const MetricColumn* const column = EventColumn(run, metric.tag);
    if (column == nullptr) return;
    parts.push_back(absl::StrCat(name, FormatBytes(std::llround(column->points.back().second))));
  };
  add_memory("memory ", metric::kMemory);
  add_memory("peak ", metric::kPeakMemory);
  const std::optional<double> rank = Last(run, metric::kSlowestRank.key),
                              excess = Last(run, metric::kSlowestExcess.key);
  if (rank && excess) {
    parts.push_back(absl::StrFormat("slowest rank %.0f (+%.1f %%)", *rank, 100 * *excess));
  }
  return absl::StrJoin(parts, " | ");
}

// Returns the last events, newest first.
std::vector<std::string> EventLines(const RunRecord& run) {
  std::vector<std::pair<double, std::string>> events;
  for (const report::ProgramStart& start : run.events.starts) {
    events.emplace_back(start.first_iteration - 0.5,
                        absl::StrFormat("started at %s, first step %.0f",
                                        report::ClockTime(start.begin), start.first_iteration));
  }
  if (run.checkpoint) {
    events.emplace_back(static_cast<double>(run.checkpoint->iteration) + 0.5,
                        absl::StrCat("checkpoint of iteration ", run.checkpoint->iteration));
  }
  if (const MetricColumn* const skipped = Column(run, metric::kSkipped.key)) {
    for (const auto& [iteration, value] : skipped->points) {
      if (value != 0)
        events.emplace_back(iteration, absl::StrFormat("iteration %.0f was skipped", iteration));
    }
  }
  for (const bool on_test_set : {false, true}) {
    const std::string name = EvaluationName(kLmLossName, on_test_set);
    const MetricColumn* const column = Column(run, name);
    if (column == nullptr) continue;
    for (const auto& [iteration, loss] : column->points) {
      events.emplace_back(iteration + 0.25,
                          absl::StrFormat("iteration %.0f: %s %.4f", iteration, name, loss));
    }
  }
  std::stable_sort(events.begin(), events.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  if (events.size() > kMostEvents) events.resize(kMostEvents);
  std::vector<std::string> lines;
  for (auto& event : events) lines.push_back(std::move(event.second));
  return lines;
}

std::string WaitingText(const WatchedRun& run) {
  return absl::StrCat("waiting: ", run.record.status().message());
}

void Append(std::vector<std::string> from, std::vector<std::string>* to) {
  to->insert(to->end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

std::vector<std::string> HeadOf(const WatchedRun& run, ScreenSize size) {
  if (!run.record.ok()) return {run.path, WaitingText(run)};
  const RunRecord& record = *run.record;
  return {Between(absl::StrCat(record.name, "  ", PositionText(record)), TimeLeftText(record),
                  size.columns),
          NumbersText(record)};
}

std::vector<std::string> OneRun(const WatchedRun& run, ScreenSize size) {
  std::vector<std::string> lines = HeadOf(run, size);
  if (!run.record.ok()) return lines;
  const RunRecord& record = *run.record;
  // What is below the curves takes up to half of the screen.
  const size_t below = static_cast<size_t>(size.rows) / 2 - 1;
  std::vector<std::string> bottom;
  const std::vector<std::string> shares = ShareLines(record, size.columns, below / 2);
  if (!shares.empty()) {
    bottom.push_back("where the time goes");
    Append(shares, &bottom);
  }
  const std::string state = StateLine(record);
  if (!state.empty()) bottom.push_back(state);
  for (std::string& line : EventLines(record)) {
    if (bottom.size() < below) bottom.push_back("· " + std::move(line));
  }
  const int curves = size.rows - static_cast<int>(lines.size() + bottom.size());
  const int loss_rows = std::max(2, curves * 2 / 3);
  Append(CurveOf(record, kLmLossName, "lm loss", size.columns, loss_rows), &lines);
  Append(CurveOf(record, metric::kTokensPerSecond.key, "tokens per second", size.columns,
                 std::max(2, curves - loss_rows)),
         &lines);
  Append(std::move(bottom), &lines);
  return lines;
}

}  // namespace

std::vector<std::string> ScreenOf(const std::vector<WatchedRun>& runs, ScreenSize size,
                                  absl::Time now) {
  size.columns = std::max(size.columns, 20);
  size.rows = std::max(size.rows, 4);
  const std::string clock = absl::FormatTime("%H:%M:%S", now, absl::LocalTimeZone());
  std::vector<std::string> lines;
  const ScreenSize rest = {size.columns, size.rows - 1};
  if (runs.size() == 1) {
    lines = OneRun(runs[0], rest);
  } else {
    const int rows = std::max(3, rest.rows / static_cast<int>(runs.size()));
    for (const WatchedRun& run : runs) {
      Append(HeadOf(run, rest), &lines);
      if (run.record.ok() && rows > 3)
        Append(CurveOf(*run.record, kLmLossName, "", size.columns, rows - 2), &lines);
    }
  }
  if (lines.size() > static_cast<size_t>(rest.rows)) lines.resize(rest.rows);
  lines.push_back(Between("Ctrl-C ends", clock, size.columns));
  for (std::string& line : lines) line = Fitted(line, size.columns);
  return lines;
}

std::string LineOf(const WatchedRun& run) {
  if (!run.record.ok()) return Fitted(absl::StrCat(run.path, ": ", WaitingText(run)), 1000);
  const std::string left = TimeLeftText(*run.record);
  return Fitted(absl::StrCat(run.record->name, ": ", PositionText(*run.record), " | ",
                             NumbersText(*run.record), left.empty() ? "" : " | ", left),
                1000);
}

}  // namespace megatron::watch
