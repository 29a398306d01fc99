#include "tools/report/summary.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "megatron/train/metrics/metric_table.h"
#include "megatron/train/metrics/step_metrics.h"
#include "megatron/train/trainer/run_plan.h"
#include "tools/report/numbers.h"

namespace megatron::report {
namespace {

std::vector<double> ValuesOf(const MetricColumn& column) {
  std::vector<double> values;
  for (const auto& point : column.points) values.push_back(point.second);
  return values;
}

// "4 = pipeline 2 x data 2"
std::string DescribeRanks(const config::ParallelConfig& parallel) {
  std::vector<std::string> axes;
  int64_t ranks = 1;
  const auto add = [&](const char* name, int64_t size) {
    if (size > 1) axes.push_back(absl::StrCat(name, " ", size));
    ranks *= std::clamp<int64_t>(size, 1, 1 << 10);
  };
  add("tensor", parallel.tensor_model_parallel_size());
  add("context", parallel.context_parallel_size());
  add("pipeline", parallel.pipeline_model_parallel_size());
  add("data", parallel.data_parallel_size());
  if (axes.empty()) return "1";
  return absl::StrCat(ranks, " = ", absl::StrJoin(axes, " \xc3\x97 "));
}

class Summarizer {
 public:
  explicit Summarizer(const RunRecord& run) : run_(run), metrics_(run.metrics) {}

  std::vector<SummaryRow> Summarize() && {
    AddProgress();
    for (const Metric& measure : ModelMeasures()) AddMeasure(measure);
    AddSpeed();
    AddTroubles();
    return std::move(rows_);
  }

 private:
  void Add(std::string label, std::string value, std::string note = "", bool is_main = false) {
    rows_.push_back({std::move(label), std::move(value), std::move(note), is_main});
  }

  void AddProgress() {
    const int64_t planned = run_.config.config.train().train_iters();
    if (metrics_.steps > 0) {
      Add("iterations", FormatCount(metrics_.last_iteration),
          planned > 0 ? absl::StrCat("of ", FormatCount(planned)) : "", true);
    }
    if (const MetricColumn* samples = metrics_.Find(metric::kConsumedSamples.key))
      if (!samples->points.empty()) Add("samples", ShortNumber(samples->points.back().second));
    if (run_.checkpoint) {
      Add("parameters", FormatCount(run_.checkpoint->parameters));
      Add("newest checkpoint", absl::StrCat("iteration ", run_.checkpoint->iteration));
    }
    if (!run_.config.text.empty()) Add("ranks", DescribeRanks(run_.config.config.parallel()));
  }

  void AddMeasure(const Metric& measure) {
    const bool is_main = measure.key == absl::string_view(kLmLossName);
    if (const MetricColumn* column = metrics_.Find(measure.key)) {
      if (const std::optional<double> last = LastValue(column->points)) {
        Add(absl::StrCat(measure.key, ", training"), ShortNumber(*last), "mean of the last 2 %",
            is_main);
      }
    }
    for (const bool on_test_set : {false, true}) {
      const MetricColumn* column = metrics_.Find(EvaluationName(measure.key, on_test_set));
      if (column == nullptr || column->points.empty()) continue;
      const auto [iteration, value] = column->points.back();
      Add(absl::StrCat(measure.key, on_test_set ? ", test" : ", validation"), ShortNumber(value),
          absl::StrFormat("at iteration %.0f", iteration), is_main && !on_test_set);
      if (is_main && !on_test_set) {
        Add("perplexity, validation", ShortNumber(Perplexity(value)));
        AddBest(column->points);
        AddValidationSets();
        AddTasks();
      }
    }
  }

  void AddValidationSets() {
    for (const MetricColumn& column : metrics_.columns) {
      const absl::string_view set = ValidationSetOf(column.key);
      if (set.empty() || column.points.empty()) continue;
      Add(absl::StrCat(kLmLossName, ", validation on ", set),
          ShortNumber(column.points.back().second),
          absl::StrFormat("at iteration %.0f", column.points.back().first));
    }
  }

  void AddTasks() {
    for (const MetricColumn& column : metrics_.columns) {
      const absl::string_view task = TaskMetricOf(column.key);
      if (task.empty() || column.points.empty()) continue;
      Add(std::string(task), ShortNumber(column.points.back().second),
          absl::StrFormat("at iteration %.0f", column.points.back().first));
    }
  }

  void AddBest(const PlotPoints& points) {
    const auto best =
        std::min_element(points.begin(), points.end(),
                         [](const auto& a, const auto& b) { return a.second < b.second; });
    if (points.size() < 2) return;
    Add("best validation loss",
        absl::StrFormat("%s at iteration %.0f", ShortNumber(best->second), best->first));
  }

  void AddSpeed() {
    if (const MetricColumn* elapsed = metrics_.Find(metric::kElapsed.key)) {
      const std::vector<double> values = ValuesOf(*elapsed);
      if (!values.empty()) {
        Add("step time, median", absl::StrCat(ShortNumber(Quantile(values, 0.5)), " ms"),
            absl::StrCat("90 % below ", ShortNumber(Quantile(values, 0.9)), " ms"), true);
        Add("step time, 90 % below", absl::StrCat(ShortNumber(Quantile(values, 0.9)), " ms"));
        Add("time in steps",
            ShortDuration(std::accumulate(values.begin(), values.end(), 0.0) / 1e3));
      }
    }
    AddMedian(metric::kTokensPerSecond, "tokens per second, median", 1, "", true);
    AddMedian(metric::kTflops, "model TFLOP/s, median", 1, "", false);
    AddMedian(metric::kMfu, "MFU, median", 100, " %", true);
  }

  void AddMedian(const Metric& metric, const char* label, double factor, const char* unit,
                 bool is_main) {
    const MetricColumn* column = metrics_.Find(metric.key);
    if (column == nullptr || column->points.empty()) return;
    Add(label, absl::StrCat(ShortNumber(factor * Quantile(ValuesOf(*column), 0.5)), unit), "",
        is_main);
  }

  void AddTroubles() {
    if (!run_.events.starts.empty()) Add("starts", absl::StrCat(run_.events.starts.size()));
    if (const MetricColumn* skipped = metrics_.Find(metric::kSkipped.key)) {
      const std::vector<double> values = ValuesOf(*skipped);
      Add("skipped steps", FormatCount(std::count(values.begin(), values.end(), 1.0)));
    }
    if (const MetricColumn* loss = metrics_.Find(kLmLossName))
      Add("losses that are not finite", FormatCount(static_cast<int64_t>(loss->absent.size())));
  }

  const RunRecord& run_;
  const RunMetrics& metrics_;
  std::vector<SummaryRow> rows_;
};

}  // namespace

std::vector<SummaryRow> Summarize(const RunRecord& run) { return Summarizer(run).Summarize(); }

Table SummaryTable(const std::vector<RunRecord>& runs) {
  Table table;
  table.caption = runs.size() == 1 ? "The run in numbers" : "The runs in numbers";
  table.columns = {"number"};
  std::vector<std::string> labels;
  std::vector<std::map<std::string, std::string>> values;
  for (const RunRecord& run : runs) {
    table.columns.push_back(run.name);
    values.emplace_back();
    auto place = labels.begin();
    for (const SummaryRow& row : Summarize(run)) {
      values.back()[row.label] = row.value;
      const auto known = std::find(labels.begin(), labels.end(), row.label);
      // A row that earlier runs lack comes after the one before it.
      place = known != labels.end() ? known + 1 : labels.insert(place, row.label) + 1;
    }
  }
  for (const std::string& label : labels) {
    std::vector<TableCell> cells = {label};
    for (const auto& of_run : values) {
      const auto found = of_run.find(label);
      cells.emplace_back(found == of_run.end() ? "\xe2\x80\x93" : found->second);
    }
    table.rows.push_back(std::move(cells));
  }
  return table;
}

std::optional<double> LastValue(const PlotPoints& points) {
  if (points.empty()) return std::nullopt;
  const size_t count = std::max<size_t>(1, points.size() / 50);
  double sum = 0;
  for (size_t i = points.size() - count; i < points.size(); ++i) sum += points[i].second;
  return sum / static_cast<double>(count);
}

}  // namespace megatron::report
