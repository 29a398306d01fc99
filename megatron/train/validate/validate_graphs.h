// The rules about CUDA graphs: what a graph cannot hold.
#ifndef MEGATRON_TRAIN_VALIDATE_VALIDATE_GRAPHS_H_
#define MEGATRON_TRAIN_VALIDATE_VALIDATE_GRAPHS_H_

#include "megatron/train/config/config_checker.h"

namespace megatron {

void CheckCudaGraphs(ConfigChecker& check);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_VALIDATE_VALIDATE_GRAPHS_H_
