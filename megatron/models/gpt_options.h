// What a GPT is: GPT-2, GPT-3 and Llama are settings of these.
#ifndef MEGATRON_MODELS_GPT_OPTIONS_H_
#define MEGATRON_MODELS_GPT_OPTIONS_H_

#include <cstdint>

#include "megatron/layers/transformer_options.h"
#include "megatron/models/layer_stack.h"

namespace megatron {

struct GptOptions {
  TransformerOptions transformer;
  int64_t vocab_size = 0;         // tokens that mean something
  int64_t padded_vocab_size = 0;  // rows of the table
  bool learned_positions = true;
  int64_t max_positions = 0;  // rows of the position table, or of the rotary tables
  bool tied_embeddings = true;
  float embedding_init_std = 0.02f;
  LayerRecompute layer_recompute;
  uint64_t dropout_seed = 1234;
};

}  // namespace megatron

#endif  // MEGATRON_MODELS_GPT_OPTIONS_H_
