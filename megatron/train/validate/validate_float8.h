// Rules about products of 8-bit floats.
#ifndef MEGATRON_TRAIN_VALIDATE_VALIDATE_FLOAT8_H_
#define MEGATRON_TRAIN_VALIDATE_VALIDATE_FLOAT8_H_

#include "megatron/train/config/config_checker.h"

namespace megatron {

void CheckFloat8(ConfigChecker& check);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_VALIDATE_VALIDATE_FLOAT8_H_
