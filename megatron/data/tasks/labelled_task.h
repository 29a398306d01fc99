// Labelled tasks that pretrained models are fine-tuned for: BERT's, with the files of their authors
// and the rules of Megatron's tasks/, and T5's, which answer a text with a text.
#ifndef MEGATRON_DATA_TASKS_LABELLED_TASK_H_
#define MEGATRON_DATA_TASKS_LABELLED_TASK_H_

#include <cstdint>

namespace megatron {

enum class LabelledTask { kMnli, kQqp, kRace, kTextToText };

// What a label of a task tells apart: the classes of a sequence, or which of several sequences of a
// sample is the right one. 0 classes: samples have no label.
struct TaskLabels {
  int64_t classes = 0;
  int64_t choices = 1;
};

constexpr TaskLabels LabelsOf(LabelledTask task) {
  switch (task) {
    case LabelledTask::kMnli:
      return {3, 1};
    case LabelledTask::kQqp:
      return {2, 1};
    case LabelledTask::kRace:
      return {1, 4};
    case LabelledTask::kTextToText:
      break;
  }
  return {};
}

}  // namespace megatron

#endif  // MEGATRON_DATA_TASKS_LABELLED_TASK_H_
