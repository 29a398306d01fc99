// Computes the values that a configuration leaves unset, so that the code after it only reads
// values.

#ifndef MEGATRON_TRAIN_CONFIG_CONFIG_DEFAULTS_H_
#define MEGATRON_TRAIN_CONFIG_CONFIG_DEFAULTS_H_

#include <cstdint>

#include "megatron/train/config/config.pb.h"

namespace megatron {

// Returns Megatron's default of ffn_hidden_size: four times the width, or, with a gate, two thirds
// of that (the gate makes three matrices of two), rounded down to a multiple of 64 that is not 0.
int64_t DefaultFfnHiddenSize(int64_t hidden_size, bool swiglu);

// Sets each field that config.proto calls `computed`, if it is unset and the fields it follows from
// are set. The exceptions are system.device, parallel.distributed_backend and
// parallel.moe_dispatch_in_parts, which the machine decides, and system.time_gemm_kernels,
// system.gemm_plan_file and system.fuse_bias_gradients, which a machine without a GPU refuses. Doing
// it twice does what doing it once does. Every section is present afterwards but `generation`, whose
// presence means something.
void ResolveDefaults(config::PretrainConfig* config);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_CONFIG_CONFIG_DEFAULTS_H_
