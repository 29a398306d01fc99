// Rules about the data that a run reads, and the tokenizer that it reads them by.
#ifndef MEGATRON_TRAIN_VALIDATE_VALIDATE_DATA_H_
#define MEGATRON_TRAIN_VALIDATE_VALIDATE_DATA_H_

#include "megatron/train/config/config_checker.h"

namespace megatron {

void CheckData(ConfigChecker& check);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_VALIDATE_VALIDATE_DATA_H_
