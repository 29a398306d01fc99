// Chooses what a run's matrix products on a GPU compute beside (system.fuse_gelu and
// system.fuse_bias_gradients), where the configuration leaves that to the GPUs.
#ifndef MEGATRON_TRAIN_GEMM_CHOOSE_EPILOGUES_H_
#define MEGATRON_TRAIN_GEMM_CHOOSE_EPILOGUES_H_

#include "megatron/comm/process_group.h"
#include "megatron/train/trainer/run_options.h"

namespace megatron {

// Returns options.gemms with both fields decided. What the configuration says is kept. Otherwise, if
// all GPUs of the run have compute capability 9.0 or more, products compute the gradients of biases
// and in backward the derivative of GELU, where the model's layers have them and do not compute in
// FP8; else they compute neither. `compute_capability` is the least of this process's GPUs
// (CudaDeviceFacts). Collective over the processes: where their GPUs differ, all choose alike.
GemmOptions ChooseEpilogues(const RunOptions& options, int compute_capability,
                            const ProcessGroup& processes);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_GEMM_CHOOSE_EPILOGUES_H_
