// A step that has every value that a step can have, for tests and benchmarks of metrics writers.
#ifndef MEGATRON_TRAIN_METRICS_FULL_STEP_H_
#define MEGATRON_TRAIN_METRICS_FULL_STEP_H_

#include "absl/strings/string_view.h"
#include "megatron/train/metrics/metric_table.h"
#include "megatron/train/metrics/step_metrics.h"
#include "megatron/train/metrics/step_values.h"

namespace megatron {

// Returns a step that is logged, with 1 for all values but those of single layers.
inline StepMetrics FullStep() {
  StepMetrics step;
  const auto set = [](const Metric&, auto& field) { field = 1; };
  VisitPosition(step, set);
  VisitValues(step, set);
  step.skipped = false;
  step.loss = 1;
  for (const Metric& measure : ModelMeasures()) {
    if (measure.key != absl::string_view(kLmLossName)) step.others.push_back({measure.key, 1});
  }
  step.sources = {{"news", 1, /*is_loss=*/true}};
  step.world_size = 1;
  step.interval.emplace();
  step.memory_bytes = step.peak_memory_bytes = 1;
  for (const Metric* metric : AllMetrics()) {
    if (FindTimer(metric->tag) == metric) step.timers.push_back({metric->tag, 1});
  }
  return step;
}

}  // namespace megatron

#endif  // MEGATRON_TRAIN_METRICS_FULL_STEP_H_
