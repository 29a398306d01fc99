#include "tools/grafana/monitoring.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "megatron/train/metrics/metric_table.h"
#include "megatron/train/metrics/prometheus_page.h"
#include "nlohmann/json.hpp"

namespace megatron {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kColumns = 24;  // the width of Grafana's grid
constexpr char kOfTheRuns[] = "{run=~\"$run\"}";

// A panel: a picture or a number.
struct Panel {
  std::string title, unit;
  std::vector<std::string> expressions, legends;
  bool is_number = false;
};

// Returns Grafana's name of the unit that the metric's name ends in.
std::string UnitOf(absl::string_view name) {
  if (absl::EndsWith(name, "_timestamp_seconds")) return "dateTimeFromNow";
  if (absl::EndsWith(name, "_flops_per_second")) return "flops";
  if (absl::EndsWith(name, "_seconds")) return "s";
  if (absl::EndsWith(name, "_bytes")) return "bytes";
  if (absl::EndsWith(name, "_ratio")) return "percentunit";
  return "short";
}

void AddTo(std::vector<Panel>* panels, const std::string& title, const std::string& name,
           const std::string& legend) {
  auto panel = std::find_if(panels->begin(), panels->end(),
                            [&](const Panel& p) { return p.title == title; });
  if (panel == panels->end()) {
    panels->push_back({title, UnitOf(name), {}, {}});
    panel = panels->end() - 1;
  }
  panel->expressions.push_back(name + kOfTheRuns);
  panel->legends.push_back(legend + " {{run}}");
}

std::vector<Panel> Numbers() {
  std::vector<Panel> panels;
  for (const auto& [title, name] : {std::pair("iteration", "megatron_iteration"),
                                    {"of", "megatron_train_iterations"},
                                    {"lm loss", "megatron_lm_loss"},
                                    {"tokens per second", "megatron_tokens_per_second"},
                                    {"time left", "megatron_time_left_seconds"},
                                    {"last checkpoint", "megatron_last_checkpoint_iteration"}}) {
    AddTo(&panels, title, name, "");
    panels.back().is_number = true;
  }
  Panel silent = {"since the last step", "s", {}, {"{{run}}"}, true};
  silent.expressions = {absl::StrCat("time() - megatron_last_step_timestamp_seconds", kOfTheRuns)};
  panels.push_back(silent);
  Panel failed = {"saves that failed", "short", {}, {"{{run}}"}, true};
  failed.expressions = {"megatron_events_total{run=~\"$run\",kind=\"save_failed\"}"};
  panels.push_back(failed);
  return panels;
}

// Returns a picture for each of those of TensorBoard's layout.
std::vector<Panel> Pictures() {
  std::vector<Panel> panels;
  for (const Metric* metric : AllMetrics()) {
    const std::optional<ScaledMetric> exported = ToPrometheus(*metric);
    if (!exported || absl::string_view(metric->chart).empty()) continue;
    const std::string& name = exported->metric.name;
    AddTo(&panels, metric->chart, name, metric->tag);
    if (FindMeasure(metric->tag) != metric || metric->tag != absl::string_view("lm loss")) continue;
    for (const bool on_test_set : {false, true}) {
      const std::string evaluated = EvaluationName(metric->tag, on_test_set);
      AddTo(&panels, metric->chart,
            on_test_set ? "megatron_lm_loss_test" : "megatron_lm_loss_validation", evaluated);
    }
  }
  AddTo(&panels, "training files", "megatron_training_file_loss", "{{file}}");
  AddTo(&panels, "validation sets", "megatron_validation_set_loss", "{{set}}");
  AddTo(&panels, "tasks", "megatron_task", "{{task}} {{metric}}");
  return panels;
}

Json PanelJson(const Panel& panel, int id, int x, int y, int width, int height) {
  Json json = {
      {"id", id},
      {"type", panel.is_number ? "stat" : "timeseries"},
      {"title", panel.title},
      {"datasource", {{"type", "prometheus"}, {"uid", "${datasource}"}}},
      {"gridPos", {{"h", height}, {"w", width}, {"x", x}, {"y", y}}},
      {"fieldConfig", {{"defaults", {{"unit", panel.unit}}}, {"overrides", Json::array()}}}};
  Json targets = Json::array();
  for (size_t i = 0; i < panel.expressions.size(); ++i) {
    targets.push_back({{"refId", absl::StrCat("q", i)},
                       {"expr", panel.expressions[i]},
                       {"legendFormat", panel.legends[i]}});
  }
  json["targets"] = std::move(targets);
  return json;
}

Json Variables() {
  const Json source = {{"name", "datasource"}, {"type", "datasource"}, {"query", "prometheus"}};
  const Json run = {{"name", "run"},
                    {"type", "query"},
                    {"datasource", {{"type", "prometheus"}, {"uid", "${datasource}"}}},
                    {"query", "label_values(megatron_steps_total, run)"},
                    {"refresh", 2},
                    {"multi", true},
                    {"includeAll", true},
                    {"current", {{"text", "All"}, {"value", "$__all"}}}};
  return {{"list", Json::array({source, run})}};
}

std::string YamlText(absl::string_view text) { return Json(text).dump(); }

}  // namespace

std::string GrafanaDashboard() {
  Json panels = Json::array();
  int id = 1, x = 0, y = 0;
  const auto place = [&](const std::vector<Panel>& some, int width, int height) {
    for (const Panel& panel : some) {
      panels.push_back(PanelJson(panel, id++, x, y, width, height));
      x += width;
      if (x < kColumns) continue;
      x = 0;
      y += height;
    }
    if (x > 0) y += height;
    x = 0;
  };
  place(Numbers(), 3, 4);
  place(Pictures(), 12, 8);
  const Json dashboard = {{"title", "Megatron training"},
                          {"uid", "megatron-training"},
                          {"schemaVersion", 39},
                          {"editable", true},
                          {"refresh", "30s"},
                          {"time", {{"from", "now-6h"}, {"to", "now"}}},
                          {"templating", Variables()},
                          {"panels", panels}};
  return dashboard.dump(2) + "\n";
}

std::vector<AlertRule> AlertRules(int silent_minutes) {
  return {
      {"MegatronNoStep",
       absl::StrCat("time() - megatron_last_step_timestamp_seconds > ", 60 * silent_minutes), "1m",
       "critical", "No step has ended for a long time",
       "Run {{ $labels.run }} has ended no step for {{ $value | humanizeDuration }}. It hangs, has "
       "crashed, or evaluates or saves for long."},
      {"MegatronNotFinite",
       "megatron_loss_is_finite == 0 or increase(megatron_events_total{kind=\"nan\"}[10m]) > 0",
       "0m", "critical", "The loss or a gradient is not finite",
       "Run {{ $labels.run }} skips steps: see its log."},
      {"MegatronLossSpike", "increase(megatron_events_total{kind=\"spike\"}[10m]) > 0", "0m",
       "warning", "The loss or the norm of the gradients has spiked",
       "Run {{ $labels.run }} was far above the steps before: see its log."},
      // The score is there where logging.spike_threshold is set.
      {"MegatronLossJump",
       "megatron_lm_loss > 1.3 * avg_over_time(megatron_lm_loss[30m]) unless on (run) "
       "megatron_loss_z_score",
       "1m", "warning", "The loss has jumped up",
       "Run {{ $labels.run }} has loss {{ $value }}, 30 % above the mean of half an hour."},
      {"MegatronSkippedSteps",
       "rate(megatron_skipped_iterations_total[15m]) > 0.01 * rate(megatron_steps_total[15m])",
       "15m", "warning", "More than 1 % of the steps are skipped",
       "Run {{ $labels.run }} has gradients that are not finite."},
      {"MegatronSlowRank", "megatron_slowest_rank_excess_ratio > 0.1", "10m", "warning",
       "A rank holds the others up",
       "In run {{ $labels.run }} a rank's own work takes {{ $value | humanizePercentage }} longer "
       "than its peers'. megatron_slowest_rank is its number."},
      {"MegatronSaveFailed", "increase(megatron_events_total{kind=\"save_failed\"}[15m]) > 0", "0m",
       "critical", "A checkpoint could not be saved",
       "Run {{ $labels.run }} goes on without it. The disk may be full: see its log."},
  };
}

std::string AlertRulesYaml(int silent_minutes) {
  std::string text = "groups:\n  - name: megatron\n    rules:\n";
  for (const AlertRule& rule : AlertRules(silent_minutes)) {
    absl::StrAppend(&text, "      - alert: ", rule.name,
                    "\n        expr: ", YamlText(rule.expression), "\n        for: ", rule.duration,
                    "\n        labels:\n          severity: ", rule.severity,
                    "\n        annotations:\n          summary: ", YamlText(rule.summary),
                    "\n          description: ", YamlText(rule.description), "\n");
  }
  return text;
}

}  // namespace megatron
