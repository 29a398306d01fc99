// The options of the optimizer and of its schedules, from a configuration.
#ifndef MEGATRON_TRAIN_TRAINER_OPTIMIZER_SECTION_H_
#define MEGATRON_TRAIN_TRAINER_OPTIMIZER_SECTION_H_

#include "megatron/optim/lr_scheduler.h"
#include "megatron/optim/qk_clip.h"
#include "megatron/optim/rules/make_update_rule.h"
#include "megatron/train/config/config.pb.h"

namespace megatron {

OptimizerOptions::Kind ToOptimizerKind(config::Optimizer::Type optimizer);

// All expect a valid configuration with its computed fields set.
OptimizerOptions ToOptimizerOptions(const config::OptimizerConfig& config);
QkClipOptions ToQkClipOptions(const config::OptimizerConfig& config);
// The steps of the schedule are samples, whatever the configuration counts in.
OptimizerParamSchedule ToSchedule(const config::PretrainConfig& config);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_TRAINER_OPTIMIZER_SECTION_H_
