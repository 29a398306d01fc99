// The options that describe a model: GPT-2, GPT-3, Llama, BERT and T5 are settings of these.
#ifndef MEGATRON_MODELS_MODEL_OPTIONS_H_
#define MEGATRON_MODELS_MODEL_OPTIONS_H_

#include <cstdint>

#include "megatron/layers/offload_modules.h"
#include "megatron/layers/transformer_options.h"
#include "megatron/models/layer_recompute.h"
#include "megatron/models/model_kind.h"

namespace megatron {

struct ModelOptions {
  ModelKind kind = ModelKind::kGpt;
  TransformerOptions transformer;
  int64_t vocab_size = 0;         // number of tokens with a meaning
  int64_t padded_vocab_size = 0;  // number of rows of the word table
  bool learned_positions = true;
  int64_t max_positions = 0;  // number of rows of the position table, or of the rotary tables
  bool tied_embeddings = true;
  float embedding_init_std = 0.02f;
  // Factor of the words' rows where the model reads them; only 1 with learned positions.
  float embedding_scale = 1;
  float embedding_output_scale = 1;  // factor of what the embedding gives, in front of its dropout
  // Weights, and embeddings, start from uniform distributions (XavierBound), not from normal ones.
  bool xavier_uniform = false, xavier_embeddings = false;
  int64_t num_token_types = 0;  // number of rows of the table of token types; 0: no such table
  // A layer in front of the output matrix (bert/masked_lm_transform.h), and its GELU. MakeBertStage
  // gives every BERT the layer, and output_bias.
  bool masked_lm_transform = false;
  ops::Activation masked_lm_activation = ops::Activation::kGeluErf;
  // BERT predicts from each sequence's first token in which order its two parts stand.
  bool sentence_order_head = false;
  // When not 0, a BERT tells which of so many classes a sequence belongs to, or with num_choices,
  // which of so many sequences is the right one (bert/sequence_classifier.h), and has no output
  // matrix.
  int64_t num_classes = 0, num_choices = 1;
  // Number of layers of T5's encoder; 0 for the other kinds. `transformer` describes the decoder,
  // and the encoder but for what t5/t5_options.h changes.
  int64_t num_encoder_layers = 0;
  bool output_bias = false;  // a bias behind the output matrix
  float output_scale = 1;    // factor of the hidden states in front of the output matrix
  // Where above 0, a logit x becomes c tanh(x / c) of this number c.
  float logit_softcap = 0;
  LayerRecompute layer_recompute;
  // The number of layers of each part of the model, its first ones, of which a GPU keeps in host
  // memory what backward needs. T5 has none.
  int64_t num_offloaded_layers = 0;
  OffloadModules offload_modules;  // the parts of that; empty: all of it
  // Whether a GPU keeps in host memory what attention in chunks (RecomputeOptions) has of all
  // tokens.
  bool attention_on_host = false;
  // Number of tokens whose logits are in memory at once; 0: those of a whole micro-batch.
  int64_t logits_chunk = 0;
  // Number of layers of multi-token prediction (multi_token_prediction.h), and the factor of the
  // mean of their losses.
  int64_t mtp_num_layers = 0;
  float mtp_loss_scaling_factor = 0.1f;
  // How many times wider the model is than the one for which initial weights and learning rates are
  // written (optim/mup.h).
  double mup_width_mult = 1;
  uint64_t dropout_seed = 1234;
};

}  // namespace megatron

#endif  // MEGATRON_MODELS_MODEL_OPTIONS_H_
