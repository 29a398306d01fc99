// The lines of the files of labelled tasks, as their authors publish them.
#ifndef MEGATRON_DATA_TASKS_TASK_LINE_H_
#define MEGATRON_DATA_TASKS_TASK_LINE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "megatron/data/tasks/labelled_task.h"

namespace megatron {

struct TaskExample {
  std::vector<std::string> first;  // the text before the other one; of several choices, one each
  std::string second;
  int32_t label = 0;
};

// Returns whether the first line of the task's files is a header.
inline bool HasHeader(LabelledTask task) {
  return task == LabelledTask::kMnli || task == LabelledTask::kQqp;
}

// Refuses the header of a file without labels, kDataLoss: one of 10 columns for MNLI, or of 3 for
// QQP.
absl::Status CheckTaskHeader(LabelledTask task, absl::string_view line);

// Refuses a line of MNLI with another number of columns than the header, kDataLoss: a tab inside a
// text, or a column that is missing, moves the texts behind it. A tab at the end counts, too.
absl::Status CheckTaskColumns(LabelledTask task, absl::string_view header, absl::string_view line);

// Appends the examples of a line. kDataLoss for a line that is wrong.
//
// MNLI: columns with tabs between them, of which 8 and 9 are the texts and the last is the label.
// QQP: six columns; 3 and 4 are the questions and 5 the label. As in Megatron, a line of other
// numbers of columns, or with an empty question, has no example; one of white space alone is wrong.
// RACE: {"article": "...", "questions": [...], "options": [[four], ...], "answers": ["A", ...]}.
// The first text of a choice is the question with the option in place of each "_", or behind it.
// Text to text: {"inputs": "...", "targets": "..."}.
//
// In the texts of the first three each white space is one blank, and " . " is ". ".
absl::Status AppendTaskExamples(LabelledTask task, absl::string_view line,
                                std::vector<TaskExample>* examples);

// Returns why a line that AppendTaskExamples takes has no example, such as "has 12 columns".
std::string WhyNoExample(LabelledTask task, absl::string_view line);

}  // namespace megatron

#endif  // MEGATRON_DATA_TASKS_TASK_LINE_H_
