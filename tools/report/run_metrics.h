// The curves of a run's metrics.jsonl, whatever metrics it has: a column for each key whose values
// are numbers.
//
// Any bytes may be in the file. A line that is no record is counted and passed over: a crash or a
// full disk leaves such lines. A run that continues takes steps again; where a file still has the
// steps of before, those from the repeated step on are dropped.
#ifndef MEGATRON_TOOLS_REPORT_RUN_METRICS_H_
#define MEGATRON_TOOLS_REPORT_RUN_METRICS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "tools/pictures/plot_curve.h"

namespace megatron::report {

struct MetricColumn {
  std::string key;
  PlotPoints points;           // (iteration, value), ascending by iteration; finite values
  std::vector<double> absent;  // iterations whose value was null or not finite, ascending
};

// How often each expert of a layer was chosen.
struct LayerLoad {
  std::string layer;
  std::vector<double> choices;  // at least one; finite, and at least 0
};

struct RunMetrics {
  std::vector<MetricColumn> columns;
  // Metrics of single layers (FindLayerMetric), in the order in which they came.
  std::vector<MetricColumn> layer_columns;
  std::vector<LayerLoad> expert_load;  // that of the last step that has it
  double expert_load_iteration = 0;
  int64_t steps = 0;  // records of steps
  int64_t first_iteration = 0, last_iteration = 0;
  int64_t unreadable_lines = 0;
  int64_t repeated_records = 0;  // dropped because a step was taken again
  int64_t ignored_keys = 0;      // keys beyond the most columns, counted once for each value

  static constexpr size_t kMostColumns = 384, kMostLayerColumns = 4096;
  // Layers beyond the first number have no load, nor have layers with more experts.
  static constexpr size_t kMostLoads = 256, kMostExperts = 1024;

  // Returns the column of that key; null if there is none.
  const MetricColumn* Find(absl::string_view key) const;
};

RunMetrics ParseRunMetrics(absl::string_view text);

}  // namespace megatron::report

#endif  // MEGATRON_TOOLS_REPORT_RUN_METRICS_H_
