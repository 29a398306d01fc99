// The metrics of a run as Prometheus reads them (text format 0.0.4), at /metrics and in a file for
// node_exporter's textfile collector.
//
// Names are made from the table of metrics: "lm loss" is megatron_lm_loss, "iteration-time" in
// seconds megatron_iteration_time_seconds, "share/compute" megatron_share_compute_ratio. Besides
// these there are counters, which begin at 0 with the program, and a few facts of the run. Every
// sample has the label run, the run's id.
#ifndef MEGATRON_TRAIN_METRICS_PROMETHEUS_PAGE_H_
#define MEGATRON_TRAIN_METRICS_PROMETHEUS_PAGE_H_

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "megatron/train/metrics/metric_table.h"
#include "megatron/train/metrics/run_event.h"
#include "megatron/train/metrics/step_metrics.h"

namespace megatron {

// A metric as Prometheus has it.
struct PrometheusMetric {
  std::string name;
  bool is_counter = false;  // else a gauge
  std::string help;
};

// Returns the metric of the table under its name in Prometheus, with the factor that makes its base
// unit of a value; unset if Prometheus has it in another form.
struct ScaledMetric {
  PrometheusMetric metric;
  double factor = 1;
};
std::optional<ScaledMetric> ToPrometheus(const Metric& metric);

// All metrics that a run may export, in the order of the page.
const std::vector<PrometheusMetric>& AllPrometheusMetrics();

// The newest values. Threads: one at a time.
class PrometheusPage {
 public:
  PrometheusPage(const std::string& run_id, absl::Time start);

  void SetStep(const StepMetrics& step);
  void SetEvaluation(const EvaluationMetrics& evaluation);
  void SetEvent(const RunEvent& event);

  std::string Text() const;

 private:
  void Set(absl::string_view name, double value) { values_[std::string(name)][""] = value; }
  void Set(const Metric& metric, double value);
  void Add(absl::string_view name, double value) { values_[std::string(name)][""] += value; }
  void SetMeasure(absl::string_view measure, std::optional<bool> on_test_set, double value);

  const std::string label_;  // run="..."
  // The values of metrics by the labels that they have beside label_: ",task=\"piqa\"".
  std::map<std::string, std::map<std::string, double>> values_;
  std::array<int64_t, kNumRunEventKinds> events_ = {};
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_METRICS_PROMETHEUS_PAGE_H_
