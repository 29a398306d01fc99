// Rules about the fields that say what a model is, whichever it is, and about BERT's.
#ifndef MEGATRON_TRAIN_VALIDATE_VALIDATE_MODEL_H_
#define MEGATRON_TRAIN_VALIDATE_VALIDATE_MODEL_H_

#include "megatron/train/config/config_checker.h"

namespace megatron {

void CheckModel(ConfigChecker& check);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_VALIDATE_VALIDATE_MODEL_H_
