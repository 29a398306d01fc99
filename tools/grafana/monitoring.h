// What shows and judges the metrics that runs export to Prometheus, made from the table of metrics:
// a dashboard for Grafana and rules of alerts for Prometheus.
#ifndef MEGATRON_TOOLS_GRAFANA_MONITORING_H_
#define MEGATRON_TOOLS_GRAFANA_MONITORING_H_

#include <string>
#include <vector>

namespace megatron {

// Returns the dashboard as Grafana imports it: JSON, with variables for the data source and for the
// runs. A metric of the table shows up by itself, in the picture that TensorBoard has it in.
std::string GrafanaDashboard();

struct AlertRule {
  std::string name, expression, duration, severity, summary, description;
};

// Returns the rules. A run is silent if no step has ended for so many minutes.
std::vector<AlertRule> AlertRules(int silent_minutes);

// Returns the rules as a file for Prometheus's rule_files.
std::string AlertRulesYaml(int silent_minutes);

}  // namespace megatron

#endif  // MEGATRON_TOOLS_GRAFANA_MONITORING_H_
