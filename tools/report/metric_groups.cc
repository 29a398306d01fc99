#include "tools/report/metric_groups.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"

namespace megatron::report {
namespace {

constexpr size_t kFewestParts = 3;

absl::string_view Name(const Metric& metric) {
  return *metric.key != '\0' ? metric.key : metric.tag;
}

absl::string_view Prefix(absl::string_view name) {
  const size_t end = name.find_first_of("/ _-:");
  return end == name.npos ? absl::string_view() : name.substr(0, end + 1);
}

bool IsShare(const Metric& metric) {
  const absl::string_view unit = metric.unit;
  return unit == "share" || absl::StartsWith(unit, "share of ");
}

bool IsSpeed(const Metric& metric) {
  const absl::string_view unit = metric.unit;
  return unit == "ms" || unit == "s" || absl::StrContains(unit, "/s") || &metric == &metric::kMfu;
}

}  // namespace

MetricName SplitMetricName(absl::string_view key) {
  MetricName name;
  name.base = std::string(key);
  if (!SourceOf(key).empty()) return name;
  if (IsOfEvaluationsAlone(key)) {
    name.validation = true;
    return name;
  }
  name.perplexity = absl::ConsumeSuffix(&key, PerplexityName(""));
  name.validation = absl::ConsumeSuffix(&key, EvaluationName("", /*on_test_set=*/false));
  name.test = !name.validation && absl::ConsumeSuffix(&key, EvaluationName("", true));
  name.base = std::string(key);
  return name;
}

bool IsOfEvaluationsAlone(absl::string_view key) {
  return !ValidationSetOf(key).empty() || !TaskMetricOf(key).empty();
}

const Metric* FindMetric(absl::string_view name) {
  if (!SourceOf(name).empty()) return &metric::kSourceLoss;
  for (const Metric* metric : AllMetrics()) {
    if (Name(*metric) == name) return metric;
  }
  return nullptr;
}

MetricGroup GroupOf(absl::string_view base) {
  if (IsOfEvaluationsAlone(base)) return MetricGroup::kLoss;
  const Metric* const metric = FindMetric(base);
  if (metric == nullptr) return MetricGroup::kOther;
  for (const Metric* hidden : {&metric::kIteration, &metric::kConsumedSamples, &metric::kSkipped,
                               &metric::kSkippedIterations, &metric::kNanIterations,
                               &metric::kWorldSize, &metric::kPerplexity}) {
    if (metric == hidden) return MetricGroup::kHidden;
  }
  if (metric == &metric::kSourceLoss) return MetricGroup::kLoss;
  if (FindMeasure(base) != nullptr) {
    const bool is_experts = absl::string_view(metric->chart) == "experts";
    return is_experts ? MetricGroup::kExperts : MetricGroup::kLoss;
  }
  for (const Metric* training :
       {&metric::kLearningRate, &metric::kDecoupledLearningRate, &metric::kGradNorm,
        &metric::kParamsNorm, &metric::kNumZeros, &metric::kLossScale, &metric::kBatchSize,
        &metric::kLossScore, &metric::kGradNormScore, &metric::kNoiseScale}) {
    if (metric == training) return MetricGroup::kTraining;
  }
  if (IsShareOfAWhole(*metric, AllMetrics())) return MetricGroup::kShares;
  if (IsSpeed(*metric)) return MetricGroup::kSpeed;
  return absl::string_view(metric->unit) == "bytes" ? MetricGroup::kMemory : MetricGroup::kOther;
}

std::string WholeOf(absl::string_view base) { return std::string(Prefix(base)); }

bool IsShareOfAWhole(const Metric& metric, absl::Span<const Metric* const> table) {
  const absl::string_view prefix = Prefix(Name(metric));
  if (!IsShare(metric) || prefix.empty()) return false;
  size_t alike = 0;
  for (const Metric* other : table) alike += IsShare(*other) && Prefix(Name(*other)) == prefix;
  return alike >= kFewestParts;
}

bool IsPart(absl::string_view base) {
  base.remove_prefix(Prefix(base).size());
  return !absl::StartsWith(base, "all-") && !absl::StartsWith(base, "hidden-") &&
         !absl::StartsWith(base, kLeastPart) && !absl::StartsWith(base, kMostPart);
}

bool IsPartOfARank(absl::string_view base) {
  if (GroupOf(base) != MetricGroup::kShares) return false;
  base.remove_prefix(Prefix(base).size());
  return absl::StartsWith(base, kLeastPart) || absl::StartsWith(base, kMostPart);
}

std::vector<std::string> InTableOrder(std::vector<std::string> keys) {
  const auto place = [](const std::string& key) {
    const auto metrics = AllMetrics();
    const Metric* const metric = FindMetric(SplitMetricName(key).base);
    return std::make_pair(std::find(metrics.begin(), metrics.end(), metric) - metrics.begin(), key);
  };
  std::sort(keys.begin(), keys.end(),
            [&](const std::string& a, const std::string& b) { return place(a) < place(b); });
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  return keys;
}

}  // namespace megatron::report
