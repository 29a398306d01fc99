// The metrics of evaluated tasks for people, and for programs that read lm_eval's results.
#ifndef MEGATRON_EVALUATE_TASK_REPORT_H_
#define MEGATRON_EVALUATE_TASK_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "megatron/evaluate/prepared_task.h"

namespace megatron {

struct TaskResult {
  std::string task, path;
  int64_t examples = 0;
  int64_t cut = 0;  // requests whose contexts were cut
  std::vector<TaskMetric> metrics;
};

// Returns a table with a row for each metric, and a line for each task with requests that were cut.
std::string FormatTaskTable(absl::Span<const TaskResult> results);

struct EvaluatedModel {
  std::string checkpoint;
  int64_t iteration = 0;
  int64_t max_length = 0;  // the most tokens that it sees at once
};

// Returns the results as lm_eval writes them, in an indented JSON object. Numbers that are not
// finite are null.
std::string LmEvalJson(const EvaluatedModel& model, absl::Span<const TaskResult> results);

}  // namespace megatron

#endif  // MEGATRON_EVALUATE_TASK_REPORT_H_
