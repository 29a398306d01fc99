#include "tools/report/metric_figures.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "megatron/train/metrics/step_metrics.h"
#include "tools/pictures/line_chart.h"
#include "tools/pictures/stack_chart.h"
#include "tools/report/numbers.h"

namespace megatron::report {
namespace {

constexpr size_t kRowsOfValues = 10;       // intervals in the table of a curve
constexpr size_t kMostIntervals = 120;     // steps of stacked shares
constexpr size_t kMostRunsWithPoints = 2;  // more runs are drawn smoothed alone

const MetricColumn* ColumnOf(const RunRecord& run, absl::string_view key) {
  if (const MetricColumn* column = run.metrics.Find(key)) return column;
  for (const MetricColumn& column : run.events.columns) {
    if (column.key == key) return &column;
  }
  return nullptr;
}

const PlotPoints& PointsOf(const RunRecord& run, absl::string_view key) {
  static const PlotPoints* const none = new PlotPoints;
  const MetricColumn* column = ColumnOf(run, key);
  return column == nullptr ? *none : column->points;
}

// A curve of a metric: training or validation, of one run.
struct Source {
  const RunRecord* run;
  int number;  // the run's number, or that of a part of a whole
  bool validation;
  PlotPoints points;
  std::string name;
  std::string key = "";  // the metric's name, of a part of a whole
};

std::vector<Source> SourcesOf(const std::vector<RunRecord>& runs, const std::string& base) {
  std::vector<Source> sources;
  for (size_t i = 0; i < runs.size(); ++i) {
    for (const bool validation : {false, true}) {
      // What evaluations alone have is a name by itself.
      const bool is_alone = IsOfEvaluationsAlone(base);
      if (is_alone && !validation) continue;
      const std::string key =
          validation && !is_alone ? EvaluationName(base, /*on_test_set=*/false) : base;
      PlotPoints points = PointsOf(runs[i], key);
      if (points.empty()) continue;
      const char* const kind = validation ? "validation" : "training";
      sources.push_back({&runs[i], static_cast<int>(i), validation, std::move(points),
                         runs.size() == 1 ? kind : absl::StrCat(runs[i].name, ", ", kind)});
    }
  }
  return sources;
}

// Bytes are shown in the unit in which the largest has at most four digits.
struct Scale {
  double factor = 1;
  std::string unit;
};
Scale ScaleOf(const std::vector<Source>& sources, absl::string_view unit) {
  Scale scale = {1, std::string(unit)};
  if (unit == "share" || absl::StartsWith(unit, "share of ")) return {100, "%"};
  if (unit != "bytes") return scale;
  double most = 0;
  for (const Source& source : sources) {
    for (const auto& point : source.points) most = std::max(most, point.second);
  }
  for (const char* next : {"KiB", "MiB", "GiB", "TiB"}) {
    if (most * scale.factor < 1024) break;
    scale = {scale.factor / 1024, next};
  }
  return scale;
}

bool IsConstant(const std::vector<Source>& sources) {
  const double value = sources.front().points.front().second;
  return std::all_of(sources.begin(), sources.end(), [&](const Source& source) {
    return std::all_of(source.points.begin(), source.points.end(),
                       [&](const auto& point) { return point.second == value; });
  });
}

bool IsPositive(const std::vector<Source>& sources) {
  return std::all_of(sources.begin(), sources.end(), [](const Source& source) {
    return std::all_of(source.points.begin(), source.points.end(),
                       [](const auto& point) { return point.second > 0; });
  });
}

// A sentence for who does not see the curve.
std::string Describe(const Source& source) {
  const auto by_value = [](const auto& a, const auto& b) { return a.second < b.second; };
  const auto [low, high] =
      std::minmax_element(source.points.begin(), source.points.end(), by_value);
  const auto at = [](const std::pair<double, double>& point) {
    return absl::StrFormat("%s at iteration %.0f", ShortNumber(point.second), point.first);
  };
  return absl::StrCat(source.name, ": from ", at(source.points.front()), " to ",
                      at(source.points.back()), "; lowest ", at(*low), ", highest ", at(*high),
                      ". ");
}

struct Interval {
  double low = INFINITY, high = -INFINITY, sum = 0, count = 0, last = 0;
};

// Returns the values of each of `count` equal parts of (first, last].
std::vector<Interval> IntervalsOf(const PlotPoints& points, double first, double last,
                                  size_t count) {
  std::vector<Interval> intervals(count);
  for (const auto& [x, y] : points) {
    const double share = (x - first) / (last - first) * static_cast<double>(count);
    const double place = std::clamp(std::ceil(share) - 1, 0.0, static_cast<double>(count - 1));
    Interval& interval = intervals[static_cast<size_t>(place)];
    interval.low = std::min(interval.low, y);
    interval.high = std::max(interval.high, y);
    interval.sum += y;
    interval.count += 1;
    interval.last = y;
  }
  return intervals;
}

PlotExtent IterationsOf(const std::vector<Source>& sources) {
  PlotExtent extent;
  for (const Source& source : sources) {
    extent.Add(source.points.front().first - 1);
    extent.Add(source.points.back().first);
  }
  return extent;
}

// Returns the curve in numbers: a row for each part of the run.
Table ValuesOf(const std::string& title, const std::vector<Source>& sources, const Scale& scale) {
  const PlotExtent extent = IterationsOf(sources);
  const double first = extent.low(), last = extent.high();
  const size_t rows = std::min(kRowsOfValues, static_cast<size_t>(last - first));
  const bool has_extremes = sources.size() <= 2 && !sources.front().validation;
  Table table;
  table.caption = absl::StrCat(title, scale.unit.empty() ? "" : absl::StrCat(", ", scale.unit));
  table.columns = {"iterations"};
  std::vector<std::vector<Interval>> intervals;
  for (const Source& source : sources) {
    table.columns.push_back(source.validation ? source.name : source.name + ", mean");
    if (has_extremes && !source.validation) {
      table.columns.push_back("lowest");
      table.columns.push_back("highest");
    }
    intervals.push_back(IntervalsOf(source.points, first, last, rows));
  }
  const auto edge = [&](size_t row) {
    return std::floor(first +
                      (last - first) * static_cast<double>(row) / static_cast<double>(rows));
  };
  for (size_t row = 0; row < rows; ++row) {
    std::vector<TableCell> cells = {
        absl::StrFormat("%.0f\xe2\x80\x93%.0f", edge(row) + 1, edge(row + 1))};
    for (size_t i = 0; i < sources.size(); ++i) {
      const Interval& interval = intervals[i][row];
      const auto add = [&](double value) {
        cells.emplace_back(interval.count == 0 ? "" : ShortNumber(value));
      };
      add(sources[i].validation ? interval.last : interval.sum / interval.count);
      if (has_extremes && !sources[i].validation) {
        add(interval.low);
        add(interval.high);
      }
    }
    table.rows.push_back(std::move(cells));
  }
  return table;
}

std::vector<ChartMark> MarksOf(const std::vector<RunRecord>& runs) {
  std::vector<ChartMark> marks;
  if (runs.size() != 1) return marks;
  const std::vector<ProgramStart>& starts = runs.front().events.starts;
  for (size_t i = 1; i < starts.size() && i <= 20; ++i) {
    marks.push_back(
        {starts[i].first_iteration,
         absl::StrFormat("Started again at iteration %.0f%s%s", starts[i].first_iteration,
                         starts[i].reason.empty() ? "" : ": ", starts[i].reason)});
  }
  return marks;
}

// Keeps what a broken file calls a share where it can be drawn.
double Share(double value) { return std::clamp(value, 0.0, 100.0); }

std::string Percent(double share) { return absl::StrFormat("%.1f %%", 100 * Share(share)); }

// Returns how many steps each point of a share tells of: those since the point before it, of the
// same start of the program. A start logs its first steps one by one, and then many at a time. What
// a start has logged last may be far behind the step at which the next one begins.
std::vector<double> StepsOf(const RunRecord& run, const PlotPoints& points) {
  const std::vector<ProgramStart>& starts = run.events.starts;
  std::vector<double> steps;
  size_t start = 0;
  double before = 0;
  for (const auto& [iteration, share] : points) {
    for (; start < starts.size() && starts[start].first_iteration <= iteration; ++start)
      before = std::max(before, starts[start].first_iteration - 1);
    steps.push_back(steps.empty() ? 1 : iteration - before);
    before = iteration;
  }
  return steps;
}

double MeanShare(const RunRecord& run, const PlotPoints& points) {
  const std::vector<double> steps = StepsOf(run, points);
  double sum = 0, count = 0;
  for (size_t i = 0; i < points.size(); ++i) {
    sum += steps[i] * Share(points[i].second);
    count += steps[i];
  }
  return sum / count;
}

// Returns the mean of a share over the run; nothing if the run does not have it.
std::string MeanPercent(const RunRecord& run, const std::string& key) {
  const PlotPoints& points = PointsOf(run, key);
  return points.empty() ? "" : Percent(MeanShare(run, points));
}

CurveLook LookOf(const Source& source, size_t runs) {
  if (source.validation) return CurveLook::kDots;
  if (!IsNoisy(source.points)) return CurveLook::kLine;
  return runs > kMostRunsWithPoints ? CurveLook::kSmoothedOnly : CurveLook::kSmoothed;
}

// Returns the curves of a metric in one picture. More than a few of `kinds` are drawn smoothed.
Figure CurvesOf(const std::vector<RunRecord>& runs, const std::string& title, const Metric* metric,
                std::vector<Source> sources, size_t kinds, const std::string& id) {
  const Scale scale = ScaleOf(sources, metric == nullptr ? "" : metric->unit);
  LineChart chart;
  chart.x_label = "iteration";
  chart.y_label = scale.unit;
  chart.marks = MarksOf(runs);
  Figure figure;
  figure.title = title;
  bool smoothed = false, has_far_values = false;
  for (Source& source : sources) {
    for (auto& point : source.points) point.second *= scale.factor;
    const CurveLook look = LookOf(source, kinds);
    smoothed = smoothed || look == CurveLook::kSmoothed || look == CurveLook::kSmoothedOnly;
    if (!source.validation) has_far_values |= WantsLogScale(source.points);
    chart.frame.description += Describe(source);
    chart.curves.push_back({source.name, source.points, look, source.number});
    if (sources.size() > 1) figure.legend.push_back({CurveKey(look, source.number), source.name});
  }
  chart.log_y = has_far_values && IsPositive(sources);
  chart.frame.title = absl::StrCat(title, " over iterations");
  figure.svg = LineChartInPage(chart, id);
  figure.caption = absl::StrCat(metric == nullptr ? "" : metric->help,
                                smoothed ? " Smoothed over 2 % of the steps." : "",
                                chart.log_y ? " Logarithmic scale." : "");
  figure.values = ValuesOf(title, sources, scale);
  return figure;
}

// Returns the ends of the intervals of stacked shares: where there are values, or fewer. Shares may
// be recorded at logged steps alone, each for the steps since the last one.
std::vector<double> EdgesOf(const std::vector<Source>& parts) {
  std::set<double> iterations;
  for (const Source& part : parts) {
    for (const auto& point : part.points) iterations.insert(point.first);
  }
  const size_t stride = (iterations.size() + kMostIntervals - 1) / kMostIntervals;
  std::vector<double> edges = {*iterations.begin() - 1};
  size_t number = 0;
  for (double iteration : iterations) {
    if (++number % stride == 0 || number == iterations.size()) edges.push_back(iteration);
  }
  return edges;
}

// Returns the mean of the shares in each interval, of which each ends at an edge; 0 without points.
std::vector<double> MeansBetween(const RunRecord& run, const PlotPoints& points,
                                 const std::vector<double>& edges) {
  const std::vector<double> steps = StepsOf(run, points);
  std::vector<double> means;
  size_t point = 0;
  for (size_t i = 1; i < edges.size(); ++i) {
    double sum = 0, count = 0;
    for (; point < points.size() && points[point].first <= edges[i]; ++point) {
      sum += steps[point] * Share(points[point].second);
      count += steps[point];
    }
    means.push_back(count == 0 ? 0 : 100 * sum / count);
  }
  return means;
}

// Returns the parts of a whole over a run, stacked.
Figure SharesOf(const RunRecord& run, size_t runs, const std::vector<Source>& parts,
                const std::string& id) {
  StackChart chart;
  chart.x_label = "iteration";
  chart.y_label = "%";
  chart.edges = EdgesOf(parts);
  Figure figure;
  figure.title = runs == 1 ? "Shares of a step" : absl::StrCat("Shares of a step, ", run.name);
  figure.values.caption = figure.title;
  figure.values.columns = {"part", "mean", "lowest", "highest", "least rank", "most rank"};
  figure.values_in_text = true;
  for (const Source& source : parts) {
    const int color = source.number;
    StackedPart part = {source.name, MeansBetween(run, source.points, chart.edges), color};
    const Interval all =
        IntervalsOf(source.points, chart.edges.front(), chart.edges.back(), 1).front();
    const std::string mean = Percent(MeanShare(run, source.points));
    const std::string whole = WholeOf(source.key);
    figure.values.rows.push_back({part.name, mean, Percent(all.low), Percent(all.high),
                                  MeanPercent(run, absl::StrCat(whole, kLeastPart, part.name)),
                                  MeanPercent(run, absl::StrCat(whole, kMostPart, part.name))});
    absl::StrAppend(&chart.frame.description, part.name, " ", mean, " on average. ");
    if (all.high <= 0) continue;  // the table has it
    figure.legend.push_back({StackKey(color), part.name});
    chart.parts.push_back(std::move(part));
  }
  chart.frame.title = figure.title;
  figure.caption = "What the parts of a step take of its time.";
  figure.svg = StackChartInPage(chart, id);
  return figure;
}

}  // namespace

MetricFigures::MetricFigures(const std::vector<RunRecord>& runs) : runs_(runs) {
  std::vector<std::string> bases;
  for (const RunRecord& run : runs) {
    for (const MetricColumn& column : run.metrics.columns)
      bases.push_back(SplitMetricName(column.key).base);
    for (const MetricColumn& column : run.events.columns) bases.push_back(column.key);
  }
  bases_ = InTableOrder(std::move(bases));
}

std::string MetricFigures::NextId() { return absl::StrCat("metric-", ++figures_); }

std::vector<Block> MetricFigures::Of(MetricGroup group) {
  std::vector<std::string> bases;
  for (const std::string& base : bases_) {
    if (GroupOf(base) == group) bases.push_back(base);
  }
  std::vector<Block> blocks;
  if (group == MetricGroup::kShares) {
    AddShares(bases, &blocks);
  } else {
    std::vector<std::string> files;
    for (const std::string& base : bases) {
      if (SourceOf(base).empty()) {
        AddCurves(base, &blocks);
      } else {
        files.push_back(base);
      }
    }
    AddFiles(files, &blocks);
  }
  return blocks;
}

void MetricFigures::AddCurves(const std::string& base, std::vector<Block>* blocks) {
  std::vector<Source> sources = SourcesOf(runs_, base);
  if (sources.empty() || IsConstant(sources)) return;
  if (figures_ >= kMostFigures) {
    ++left_out_;
    return;
  }
  blocks->push_back(
      CurvesOf(runs_, base, FindMetric(base), std::move(sources), runs_.size(), NextId()));
}

void MetricFigures::AddFiles(const std::vector<std::string>& bases, std::vector<Block>* blocks) {
  for (const RunRecord& run : runs_) {
    std::vector<Source> sources;
    for (size_t i = 0; i < bases.size(); ++i) {
      const PlotPoints& points = PointsOf(run, bases[i]);
      if (points.empty()) continue;
      sources.push_back(
          {&run, static_cast<int>(i), false, points, std::string(SourceOf(bases[i]))});
    }
    if (sources.empty() || IsConstant(sources)) continue;
    if (figures_ >= kMostFigures) {
      ++left_out_;
      continue;
    }
    const std::string title = absl::StrCat(kLmLossName, " by training file",
                                           runs_.size() == 1 ? "" : absl::StrCat(", ", run.name));
    const size_t curves = sources.size();
    blocks->push_back(
        CurvesOf(runs_, title, &metric::kSourceLoss, std::move(sources), curves, NextId()));
  }
}

void MetricFigures::AddShares(const std::vector<std::string>& bases, std::vector<Block>* blocks) {
  std::set<std::string> wholes;
  for (const std::string& base : bases) wholes.insert(WholeOf(base));
  for (const std::string& whole : wholes) {
    for (const RunRecord& run : runs_) {
      std::vector<Source> sources;
      int number = 0;  // the part's place among those of all runs, so that it has one color
      for (const std::string& base : bases) {
        if (WholeOf(base) != whole || !IsPart(base)) continue;
        const PlotPoints& points = PointsOf(run, base);
        if (!points.empty())
          sources.push_back({&run, number, false, points, base.substr(whole.size()), base});
        ++number;
      }
      if (sources.size() < 2) continue;
      if (figures_ >= kMostFigures) {
        ++left_out_;
        continue;
      }
      blocks->push_back(SharesOf(run, runs_.size(), sources, NextId()));
    }
  }
  for (const std::string& base : bases) {
    if (!IsPart(base) && !IsPartOfARank(base)) AddCurves(base, blocks);
  }
}

Table MetricFigures::Constants() const {
  Table table;
  table.caption = "Metrics that never changed";
  table.columns = {"metric", "value", "unit"};
  for (const std::string& base : bases_) {
    if (GroupOf(base) == MetricGroup::kHidden || IsPartOfARank(base)) continue;
    const std::vector<Source> sources = SourcesOf(runs_, base);
    if (sources.empty() || !IsConstant(sources)) continue;
    const Metric* const metric = FindMetric(base);
    const Scale scale = ScaleOf(sources, metric == nullptr ? "" : metric->unit);
    const double value = scale.factor * sources.front().points.front().second;
    table.rows.push_back({base, ShortNumber(value), scale.unit});
  }
  return table;
}

}  // namespace megatron::report
