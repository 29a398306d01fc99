#include "tools/report/run_metrics.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "megatron/train/metrics/metric_table.h"
#include "nlohmann/json.hpp"

namespace megatron::report {
namespace {

using Json = nlohmann::json;

constexpr int64_t kLastIteration = int64_t{1} << 50;  // doubles hold all integers up to it
constexpr size_t kLongestKey = 200;
// A longer line is no record, and is not parsed.
constexpr size_t kLongestLine = size_t{1} << 20;

class Reader {
 public:
  void ReadLine(absl::string_view line) {
    if (line.size() > kLongestLine) return CountUnreadable();
    const Json record = Json::parse(line, /*cb=*/nullptr, /*allow_exceptions=*/false);
    if (!record.is_object()) return CountUnreadable();
    const auto iteration = record.find(metric::kIteration.key);
    if (iteration == record.end() || !iteration->is_number_integer()) return CountUnreadable();
    const int64_t number = iteration->get<int64_t>();
    if (number < 0 || number > kLastIteration) return CountUnreadable();
    ReadRecord(number, record);
  }

  RunMetrics Finish() && {
    metrics_.steps = static_cast<int64_t>(steps_.size());
    if (!steps_.empty()) {
      metrics_.first_iteration = steps_.front();
      metrics_.last_iteration = steps_.back();
    }
    return std::move(metrics_);
  }

 private:
  void CountUnreadable() { ++metrics_.unreadable_lines; }

  void ReadRecord(int64_t iteration, const Json& record) {
    const bool is_step = record.contains(metric::kConsumedSamples.key);
    if (is_step) {
      if (!steps_.empty() && iteration <= steps_.back()) GoBackTo(iteration);
      steps_.push_back(iteration);
    }
    for (const auto& [key, value] : record.items()) {
      if (value.is_array()) ReadLoad(static_cast<double>(iteration), key, value);
      const bool is_value = value.is_number() || value.is_boolean() || value.is_null();
      if (key == metric::kIteration.key || !is_value || key.size() > kLongestKey) continue;
      MetricColumn* const column = ColumnOf(key);
      if (column == nullptr) {
        ++metrics_.ignored_keys;
        continue;
      }
      const double number = value.is_boolean()  ? (value.get<bool>() ? 1.0 : 0.0)
                            : value.is_number() ? value.get<double>()
                                                : std::nan("");
      Append(static_cast<double>(iteration), number, column);
    }
  }

  void ReadLoad(double iteration, const std::string& key, const Json& array) {
    const bool fits =
        key.size() <= kLongestKey && !array.empty() && array.size() <= RunMetrics::kMostExperts;
    if (FindLayerMetric(key) != &metric::kLayerExpertLoad || !fits) return;
    LayerLoad load;
    load.layer = std::string(LayerOf(key));
    for (const Json& choices : array) {
      const double number = choices.is_number() ? choices.get<double>() : -1;
      if (!std::isfinite(number) || number < 0) return;
      load.choices.push_back(number);
    }
    if (metrics_.expert_load_iteration != iteration) metrics_.expert_load.clear();
    metrics_.expert_load_iteration = iteration;
    if (metrics_.expert_load.size() < RunMetrics::kMostLoads)
      metrics_.expert_load.push_back(std::move(load));
  }

  static void Append(double iteration, double value, MetricColumn* column) {
    DropFrom(iteration, column);
    if (std::isfinite(value)) {
      column->points.emplace_back(iteration, value);
    } else {
      column->absent.push_back(iteration);
    }
  }

  static void DropFrom(double iteration, MetricColumn* column) {
    while (!column->points.empty() && column->points.back().first >= iteration)
      column->points.pop_back();
    while (!column->absent.empty() && column->absent.back() >= iteration) column->absent.pop_back();
  }

  // The run has taken this step before, and takes it and all later ones again.
  void GoBackTo(int64_t iteration) {
    for (; !steps_.empty() && steps_.back() >= iteration; steps_.pop_back())
      ++metrics_.repeated_records;
    for (auto* const columns : {&metrics_.columns, &metrics_.layer_columns}) {
      for (MetricColumn& column : *columns) DropFrom(static_cast<double>(iteration), &column);
    }
  }

  MetricColumn* ColumnOf(const std::string& key) {
    const bool of_layer = FindLayerMetric(key) != nullptr;
    std::vector<MetricColumn>& columns = of_layer ? metrics_.layer_columns : metrics_.columns;
    const auto found = places_.find(key);
    if (found != places_.end()) return &columns[found->second];
    if (columns.size() == (of_layer ? RunMetrics::kMostLayerColumns : RunMetrics::kMostColumns))
      return nullptr;
    places_.emplace(key, columns.size());
    columns.emplace_back().key = key;
    return &columns.back();
  }

  RunMetrics metrics_;
  std::vector<int64_t> steps_;            // iterations of the steps, ascending
  std::map<std::string, size_t> places_;  // columns' places, by key
};

}  // namespace

const MetricColumn* RunMetrics::Find(absl::string_view key) const {
  const auto found = std::find_if(columns.begin(), columns.end(),
                                  [&](const MetricColumn& column) { return column.key == key; });
  return found == columns.end() ? nullptr : &*found;
}

RunMetrics ParseRunMetrics(absl::string_view text) {
  Reader reader;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    if (end > 0) reader.ReadLine(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return std::move(reader).Finish();
}

}  // namespace megatron::report
