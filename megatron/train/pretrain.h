// Pretraining from a configuration to an exit code: what the pretrain_* binaries do.
#ifndef MEGATRON_TRAIN_PRETRAIN_H_
#define MEGATRON_TRAIN_PRETRAIN_H_

#include "megatron/train/pretrain_command.h"

namespace megatron {

// If a launcher has started this process, it is one rank of the run; else it runs or starts all
// ranks.
// Prints to stdout what it does and to stderr what goes wrong; returns one of exit_code.h.
int Pretrain(const PretrainCommand& command);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_PRETRAIN_H_
