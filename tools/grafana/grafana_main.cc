// Writes a dashboard for Grafana and rules of alerts for Prometheus, for the metrics that runs
// export with logging.metrics_port or logging.prometheus_textfile.
//
//   grafana                       megatron_dashboard.json and megatron_alerts.yml, here
//   grafana --output_dir=/etc/x --silent_minutes=30

#include <cstdio>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "megatron/base/file_system.h"
#include "megatron/base/status_macros.h"
#include "tools/common/tool_main.h"
#include "tools/grafana/monitoring.h"

ABSL_FLAG(std::string, output_dir, ".", "The folder of the two files.");
ABSL_FLAG(int, silent_minutes, 10,
          "The alert MegatronNoStep comes when no step has ended for so many minutes.");

namespace megatron {
namespace {

absl::Status WriteMonitoring(const std::vector<std::string>& arguments) {
  if (!arguments.empty())
    return absl::InvalidArgumentError(absl::StrCat("expected no argument, not ", arguments[0]));
  const int minutes = absl::GetFlag(FLAGS_silent_minutes);
  if (minutes < 1 || minutes > 100000) {
    return absl::InvalidArgumentError(
        absl::StrCat("--silent_minutes=", minutes, " is not between 1 and 100000"));
  }
  const std::string directory = absl::GetFlag(FLAGS_output_dir);
  const std::string dashboard = JoinPath(directory, "megatron_dashboard.json"),
                    alerts = JoinPath(directory, "megatron_alerts.yml");
  FileSystem& fs = PosixFileSystem();
  MEGATRON_RETURN_IF_ERROR(fs.CreateDirs(directory));
  MEGATRON_RETURN_IF_ERROR(WriteFileAtomically(fs, dashboard, GrafanaDashboard()));
  MEGATRON_RETURN_IF_ERROR(WriteFileAtomically(fs, alerts, AlertRulesYaml(minutes)));
  std::printf("wrote %s and %s\n", dashboard.c_str(), alerts.c_str());
  return absl::OkStatus();
}

}  // namespace
}  // namespace megatron

int main(int argc, char** argv) {
  return megatron::RunTool(argc, argv,
                           "Writes a dashboard for Grafana and rules of alerts for Prometheus.",
                           megatron::WriteMonitoring);
}
