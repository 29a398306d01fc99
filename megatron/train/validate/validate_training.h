// Rules about the optimizer, its schedules and the sizes of batches.
#ifndef MEGATRON_TRAIN_VALIDATE_VALIDATE_TRAINING_H_
#define MEGATRON_TRAIN_VALIDATE_VALIDATE_TRAINING_H_

#include "megatron/train/config/config_checker.h"

namespace megatron {

void CheckTraining(ConfigChecker& check);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_VALIDATE_VALIDATE_TRAINING_H_
