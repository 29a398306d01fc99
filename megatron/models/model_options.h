// What a model is: GPT-2, GPT-3, Llama, BERT and T5 are settings of these.
#ifndef MEGATRON_MODELS_MODEL_OPTIONS_H_
#define MEGATRON_MODELS_MODEL_OPTIONS_H_

#include <cstdint>

#include "megatron/layers/transformer_options.h"
#include "megatron/models/layer_stack.h"

namespace megatron {

struct ModelOptions {
  TransformerOptions transformer;
  int64_t vocab_size = 0;         // tokens that mean something
  int64_t padded_vocab_size = 0;  // rows of the table
  bool learned_positions = true;
  int64_t max_positions = 0;  // rows of the position table, or of the rotary tables
  bool tied_embeddings = true;
  float embedding_init_std = 0.02f;
  int64_t num_token_types = 0;  // rows of the table of token types; 0: there are none
  // BERT's head: a dense layer, GELU and a norm in front of the output matrix, and a bias behind
  // it; the last norm of a post-norm model is that of its last layer.
  bool masked_lm_head = false;
  ops::Activation masked_lm_activation = ops::Activation::kGeluErf;  // that GELU
  // Predicts from each sequence's first token in which order its two parts stand.
  bool sentence_order_head = false;
  // Of a model with an encoder in front of its decoder, which `transformer` describes, and so does
  // the encoder but for what t5_options.h says. 0: there is none.
  int64_t num_encoder_layers = 0;
  bool output_bias = false;  // behind the output matrix; BERT's head has it anyway
  float output_scale = 1;    // of what meets the output matrix
  LayerRecompute layer_recompute;
  // Of how many tokens there are logits in memory at once; 0: of a whole micro-batch.
  int64_t logits_chunk = 0;
  uint64_t dropout_seed = 1234;
};

}  // namespace megatron

#endif  // MEGATRON_MODELS_MODEL_OPTIONS_H_
