// Rules about the fields that say what a T5 is, and about what it cannot do.
#ifndef MEGATRON_TRAIN_VALIDATE_VALIDATE_T5_H_
#define MEGATRON_TRAIN_VALIDATE_VALIDATE_T5_H_

#include "megatron/train/config/config_checker.h"

namespace megatron {

// Silent where the model is no T5 and nothing of it is written.
void CheckT5(ConfigChecker& check);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_VALIDATE_VALIDATE_T5_H_
