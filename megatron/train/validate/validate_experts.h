// The rules of validate.h about mixtures of experts.
#ifndef MEGATRON_TRAIN_VALIDATE_VALIDATE_EXPERTS_H_
#define MEGATRON_TRAIN_VALIDATE_VALIDATE_EXPERTS_H_

#include "megatron/train/config/config_checker.h"

namespace megatron {

void CheckExperts(ConfigChecker& check);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_VALIDATE_VALIDATE_EXPERTS_H_
