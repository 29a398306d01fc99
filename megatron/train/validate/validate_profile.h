// The rules of what is profiled.
#ifndef MEGATRON_TRAIN_VALIDATE_VALIDATE_PROFILE_H_
#define MEGATRON_TRAIN_VALIDATE_VALIDATE_PROFILE_H_

#include "megatron/train/config/config_checker.h"

namespace megatron {

void CheckProfile(ConfigChecker& check);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_VALIDATE_VALIDATE_PROFILE_H_
