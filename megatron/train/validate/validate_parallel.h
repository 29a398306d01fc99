// Rules about the fields that say how a run is shared out over ranks.
#ifndef MEGATRON_TRAIN_VALIDATE_VALIDATE_PARALLEL_H_
#define MEGATRON_TRAIN_VALIDATE_VALIDATE_PARALLEL_H_

#include "megatron/train/config/config_checker.h"

namespace megatron {

void CheckParallel(ConfigChecker& check);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_VALIDATE_VALIDATE_PARALLEL_H_
