// The labelled task that a configuration names.
#ifndef MEGATRON_TRAIN_RECIPES_LABELLED_TASK_OF_H_
#define MEGATRON_TRAIN_RECIPES_LABELLED_TASK_OF_H_

#include <optional>

#include "megatron/data/tasks/labelled_task.h"
#include "megatron/train/config/config.pb.h"

namespace megatron {

inline std::optional<LabelledTask> LabelledTaskOf(const config::DataConfig& data) {
  switch (data.task()) {
    case config::LabelledTask::MNLI:
      return LabelledTask::kMnli;
    case config::LabelledTask::QQP:
      return LabelledTask::kQqp;
    case config::LabelledTask::RACE:
      return LabelledTask::kRace;
    case config::LabelledTask::text_to_text:
      return LabelledTask::kTextToText;
    case config::LabelledTask::none:
      break;
  }
  return std::nullopt;
}

}  // namespace megatron

#endif  // MEGATRON_TRAIN_RECIPES_LABELLED_TASK_OF_H_
