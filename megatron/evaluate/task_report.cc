#include "megatron/evaluate/task_report.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "megatron/base/quantity.h"
#include "nlohmann/json.hpp"

namespace megatron {
namespace {

using Json = nlohmann::ordered_json;

// Greater numbers, such as perplexities of untrained models, are shown with an exponent.
constexpr double kMostPlain = 1e5;

// lm_eval's names have the filter of answers behind a comma.
std::string Key(const std::string& metric) { return absl::StrCat(metric, ",none"); }

}  // namespace

std::string FormatTaskTable(absl::Span<const TaskResult> results) {
  size_t width = 4;
  for (const TaskResult& result : results) width = std::max(width, result.task.size());
  const int w = static_cast<int>(width);
  std::string table = absl::StrFormat("%-*s  %8s  %-15s  %10s  %s\n", w, "task", "examples",
                                      "metric", "value", "standard error");
  std::string notes;
  for (const TaskResult& result : results) {
    for (const TaskMetric& metric : result.metrics) {
      absl::StrAppendFormat(&table, "%-*s  %8d  %-15s  ", w, result.task, result.examples,
                            metric.name);
      if (metric.value < kMostPlain) {
        absl::StrAppendFormat(&table, "%10.4f", metric.value);
      } else {
        absl::StrAppendFormat(&table, "%10.4g", metric.value);
      }
      if (metric.standard_error) absl::StrAppendFormat(&table, "  %.4f", *metric.standard_error);
      table += '\n';
    }
    if (result.cut > 0) {
      absl::StrAppend(&notes, result.task, ": ", FormatQuantity(result.cut, "context"),
                      " lost first tokens, to fit into the model's\n");
    }
  }
  return table + notes;
}

std::string LmEvalJson(const EvaluatedModel& model, absl::Span<const TaskResult> results) {
  Json all;
  for (const TaskResult& result : results) {
    Json values = {{"alias", result.task}}, higher_is_better;
    for (const TaskMetric& metric : result.metrics) {
      values[Key(metric.name)] = metric.value;
      values[Key(metric.name + "_stderr")] =
          metric.standard_error ? Json(*metric.standard_error) : Json("N/A");
      higher_is_better[metric.name] = metric.higher_is_better;
    }
    all["results"][result.task] = std::move(values);
    all["higher_is_better"][result.task] = std::move(higher_is_better);
    all["n-shot"][result.task] = 0;
    all["n-samples"][result.task] = {{"original", result.examples}, {"effective", result.examples}};
    all["configs"][result.task] = {{"task", result.task}, {"path", result.path}};
  }
  all["config"] = {{"model", "megatron"},
                   {"model_args", {{"checkpoint", model.checkpoint}}},
                   {"iteration", model.iteration}};
  all["max_length"] = model.max_length;
  // A path may be no UTF-8.
  return all.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace megatron
