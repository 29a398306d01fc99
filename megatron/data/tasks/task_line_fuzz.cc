// Fuzzes AppendTaskExamples: any bytes as a line of any task give either an error, or examples
// whose labels are in range and whose texts are as many as the task has choices.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "glog/logging.h"
#include "megatron/data/tasks/task_line.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using megatron::LabelledTask;
  const absl::string_view line(reinterpret_cast<const char*>(data), size);
  for (const LabelledTask task :
       {LabelledTask::kMnli, LabelledTask::kQqp, LabelledTask::kRace, LabelledTask::kTextToText}) {
    megatron::CheckTaskHeader(task, line).IgnoreError();
    megatron::CheckTaskColumns(task, /*header=*/"", line).IgnoreError();
    std::vector<megatron::TaskExample> examples;
    if (!megatron::AppendTaskExamples(task, line, &examples).ok()) continue;
    if (examples.empty()) CHECK(!megatron::WhyNoExample(task, line).empty());
    const megatron::TaskLabels labels = megatron::LabelsOf(task);
    for (const megatron::TaskExample& example : examples) {
      CHECK_EQ(static_cast<int64_t>(example.first.size()), labels.choices);
      CHECK_GE(example.label, 0);
      if (labels.classes > 0) {
        CHECK_LT(example.label, labels.choices > 1 ? labels.choices : labels.classes);
      }
    }
  }
  return 0;
}
