// Which metrics a report shows together, by the table of metrics: a metric that is new there shows
// up by itself.
#ifndef MEGATRON_TOOLS_REPORT_METRIC_GROUPS_H_
#define MEGATRON_TOOLS_REPORT_METRIC_GROUPS_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "megatron/train/metrics/metric_table.h"

namespace megatron::report {

enum class MetricGroup {
  kLoss,      // what the model is measured by
  kTraining,  // what the optimizer does
  kSpeed,
  kShares,  // shares of one whole, such as a step's time
  kExperts,
  kMemory,
  kOther,   // all others, and metrics that the table does not have
  kHidden,  // those that say where the others are, or follow from others
};

// A metric's name without what evaluations add to it.
struct MetricName {
  std::string base;
  bool validation = false, test = false, perplexity = false;
};
MetricName SplitMetricName(absl::string_view key);

// Returns whether the metric is the loss on one of several validation sets, or a task's.
bool IsOfEvaluationsAlone(absl::string_view key);

// Returns the metric with that key or, if metrics.jsonl lacks it, that tag; null if there is none.
// The loss on each of several training files is one metric.
const Metric* FindMetric(absl::string_view name);

MetricGroup GroupOf(absl::string_view base);

// Returns the beginning of the name that a metric of kShares has in common with the other parts of
// its whole, up to the first of "/ _-:".
std::string WholeOf(absl::string_view base);

// Returns whether the metric is a share of the same whole as others of the table: its unit is
// "share" or "share of" something, and at least three such metrics begin alike.
bool IsShareOfAWhole(const Metric& metric, absl::Span<const Metric* const> table);

// Returns whether a metric of kShares is a part of its whole. Shares called "all-..." are sums of
// parts, shares called "hidden-..." lie beside them, and those of IsPartOfARank repeat them.
bool IsPart(absl::string_view base);

// Returns whether it is the least or the most of a part on any rank: "share/least-compute".
bool IsPartOfARank(absl::string_view base);
inline constexpr char kLeastPart[] = "least-", kMostPart[] = "most-";

// Returns the keys in the order of the table; others follow, sorted.
std::vector<std::string> InTableOrder(std::vector<std::string> keys);

}  // namespace megatron::report

#endif  // MEGATRON_TOOLS_REPORT_METRIC_GROUPS_H_
