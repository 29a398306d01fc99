// What --dry_run prints.
#ifndef MEGATRON_TRAIN_PRINT_PLAN_H_
#define MEGATRON_TRAIN_PRINT_PLAN_H_

#include "megatron/train/pretrain_command.h"

namespace megatron {

// Returns the exit code.
int PrintPlan(const PretrainCommand& command);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_PRINT_PLAN_H_
