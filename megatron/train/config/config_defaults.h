// Computes what a configuration leaves to be computed, so that the code after it reads values and
// asks no questions.

#ifndef MEGATRON_TRAIN_CONFIG_CONFIG_DEFAULTS_H_
#define MEGATRON_TRAIN_CONFIG_CONFIG_DEFAULTS_H_

#include <cstdint>

#include "megatron/train/config/config.pb.h"

namespace megatron {

// Megatron's choice where ffn_hidden_size is not set: four times the width, or, with a gate, two
// thirds of that (the gate makes three matrices of two), rounded down to a multiple of 64 that is
// not 0.
int64_t DefaultFfnHiddenSize(int64_t hidden_size, bool swiglu);

// Sets each field whose comment in config.proto says "Computed", if it is unset and the fields it
// follows from are set. Doing it twice does what doing it once does. Every section is present
// afterwards but `generation`, whose presence means something.
//
//   model: ffn_hidden_size, kv_channels, num_query_groups, max_position_embeddings,
//   embedding_init_method_std recompute: recompute_modules            optimizer: lr_decay_iters,
//   start_weight_decay, end_weight_decay training: global_batch_size             checkpoint: load
//   logging: metrics_file
void ResolveDefaults(config::PretrainConfig* config);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_CONFIG_CONFIG_DEFAULTS_H_
