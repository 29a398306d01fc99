// What a run's TensorBoard files tell beyond metrics.jsonl: when the program was started, the clock
// of the steps, and metrics that metrics.jsonl does not have.
//
// Any bytes may be in the files. A file is read up to the first record that is damaged.
#ifndef MEGATRON_TOOLS_REPORT_RUN_EVENTS_H_
#define MEGATRON_TOOLS_REPORT_RUN_EVENTS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "megatron/base/file_system.h"
#include "tools/report/run_metrics.h"

namespace megatron::report {

// A start of the program that took steps which still count.
struct ProgramStart {
  double first_iteration = 0, last_iteration = 0;
  double begin = 0, end = 0;  // times of its first and last record, in seconds since 1970
  std::string reason;         // why a launcher started it again; empty if unknown
};

struct RunEvents {
  std::vector<ProgramStart> starts;
  // Metrics of metric_table.h that TensorBoard alone gets, by their tags.
  std::vector<MetricColumn> columns;
  std::string config_text;  // the last start's; empty if there is none
};

// Reads the files of the run that wrote last. A folder that is missing has no events.
absl::StatusOr<RunEvents> ReadRunEvents(FileSystem& fs, const std::string& directory);

}  // namespace megatron::report

#endif  // MEGATRON_TOOLS_REPORT_RUN_EVENTS_H_
