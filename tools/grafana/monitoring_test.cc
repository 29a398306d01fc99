#include "tools/grafana/monitoring.h"

#include <regex>
#include <set>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/train/metrics/prometheus_page.h"
#include "nlohmann/json.hpp"

namespace megatron {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

std::set<std::string> Exported() {
  std::set<std::string> names;
  for (const PrometheusMetric& metric : AllPrometheusMetrics()) names.insert(metric.name);
  return names;
}

// Returns the metrics that the expression names.
std::set<std::string> NamesIn(const std::string& expression) {
  static const std::regex name("megatron_[a-z0-9_]+");
  return {std::sregex_token_iterator(expression.begin(), expression.end(), name), {}};
}

void ExpectExported(const std::string& expression) {
  const std::set<std::string> names = NamesIn(expression);
  EXPECT_FALSE(names.empty()) << expression;
  for (const std::string& name : names) EXPECT_THAT(Exported(), Contains(name)) << expression;
}

TEST(MonitoringTest, TheDashboardNamesExportedMetricsAlone) {
  const auto dashboard = nlohmann::json::parse(GrafanaDashboard());
  ASSERT_GT(dashboard["panels"].size(), 10u);
  for (const auto& panel : dashboard["panels"]) {
    ASSERT_FALSE(panel["targets"].empty()) << panel;
    for (const auto& target : panel["targets"]) ExpectExported(target["expr"]);
  }
  ExpectExported(dashboard["templating"]["list"][1]["query"]);
}

TEST(MonitoringTest, EachPictureOfTensorboardIsThere) {
  const std::string dashboard = GrafanaDashboard();
  for (const Metric* metric : AllMetrics()) {
    const auto exported = ToPrometheus(*metric);
    if (!exported || std::string(metric->chart).empty()) continue;
    EXPECT_THAT(dashboard, HasSubstr(exported->metric.name + "{"));
  }
}

TEST(MonitoringTest, PanelsLieSideBySideOnTheGrid) {
  const auto dashboard = nlohmann::json::parse(GrafanaDashboard());
  std::set<std::pair<int, int>> taken;
  std::set<int> ids;
  for (const auto& panel : dashboard["panels"]) {
    EXPECT_TRUE(ids.insert(panel["id"].get<int>()).second);
    const auto& place = panel["gridPos"];
    const int x = place["x"], y = place["y"], w = place["w"], h = place["h"];
    EXPECT_LE(x + w, 24);
    for (int i = x; i < x + w; ++i) {
      for (int j = y; j < y + h; ++j) EXPECT_TRUE(taken.emplace(i, j).second) << panel["title"];
    }
  }
}

TEST(MonitoringTest, TheRulesNameExportedMetricsAlone) {
  for (const AlertRule& rule : AlertRules(10)) ExpectExported(rule.expression);
  EXPECT_THAT(AlertRulesYaml(7), HasSubstr("last_step_timestamp_seconds > 420\""));
}

}  // namespace
}  // namespace megatron
