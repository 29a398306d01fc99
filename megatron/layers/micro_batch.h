// MicroBatch: the tokens that go through the model at once, as one packed row of T tokens in
// (sample, position) order.
//
// Nothing is padded and nothing is shaped [batch, sequence]: cu_seqlens says which tokens attend to
// each other. A sample's ordinal counts samples in training order over the whole run, so that
// dropout depends on it and not on the layout.
#ifndef MEGATRON_LAYERS_MICRO_BATCH_H_
#define MEGATRON_LAYERS_MICRO_BATCH_H_

#include <cstdint>

#include "megatron/tensor/tensor.h"

namespace megatron {

// A rank's knowledge of the tokens that other context-parallel ranks hold, in C teams
// (context_slice.h).
struct ContextBatch {
  int64_t sample_length = 0;  // tokens of each sample; 0: samples have any length
  int team_size = 1;          // ranks of a team
  Tensor cu_seqlens;          // int32 [C, sequences + 1]: the sequences among each team's tokens
  Tensor place_CT;            // int32: place of each team's tokens in their sequences
  Tensor sample_T, sample_position_T;  // as in MicroBatch, for the tokens of this rank's team
  // int32, for each sequence that has a label: which of this rank's tokens begins it; -1 where
  // another rank's token does.
  Tensor first_token_S;
};

// The tokens that an encoder reads, packed in the same way and of the same sequences: sequence i of
// the decoder attends to sequence i here.
struct EncoderBatch {
  Tensor tokens_T;                     // int32
  Tensor position_T;                   // int32
  Tensor sample_T, sample_position_T;  // int64 and int32: as in MicroBatch, for dropout
  Tensor cu_seqlens;                   // int32 [sequences + 1]
  int64_t max_seqlen = 0;
  ContextBatch context;

  int64_t num_tokens() const { return tokens_T.empty() ? 0 : tokens_T.numel(); }
};

// R spans of labels, each of which is right only as a whole.
struct SpanBatch {
  Tensor span_T;     // int32: the span that a token's label belongs to, or -1
  Tensor missing_R;  // fp32: 1 - labels
  Tensor weight_R;   // fp32: 1

  int64_t num_spans() const { return weight_R.empty() ? 0 : weight_R.numel(); }
};

// What multi-token prediction reads and predicts: for each of D depths, the tokens and labels of
// the places so many further on in the same sequence. Where a sequence has no such place, tokens
// are 0, labels -1 and weights 0.
struct MtpBatch {
  Tensor tokens_DT, labels_DT;                // int32
  Tensor loss_weight_DT, gradient_weight_DT;  // fp32; gradients with the factor of the loss

  int64_t depths() const { return tokens_DT.empty() ? 0 : tokens_DT.dim(0); }
};

struct MicroBatch {
  Tensor tokens_T;       // int32
  Tensor labels_T;       // int32, already shifted; empty when only logits are wanted
  Tensor loss_weight_T;  // fp32: weight of each token's loss in the reported mean; 0: none
  // fp32: loss_weight * loss scale / sum of the loss weights of the global batch
  Tensor gradient_weight_T;
  Tensor position_T;  // int32: the place for position embeddings; may start again inside a sample
  Tensor sample_T;    // int64: ordinal of the token's sample
  Tensor sample_position_T;  // int32: place in the sample
  Tensor cu_seqlens;         // int32 [sequences + 1]; of all context-parallel ranks' tokens
  int64_t max_seqlen = 0;
  ContextBatch context;  // empty where this rank holds all tokens
  // The number of samples, which follow each other and have equal lengths unless sample_number_T
  // tells them apart; and the weight of one sample in the gradient of a mean over samples: loss
  // scale / samples of the global batch.
  int64_t num_samples = 1;
  float sample_weight = 0;

  // The types of models that tell tokens or sequences apart by more than their place; else empty.
  Tensor token_type_T;  // int32
  // int32: the class of each sequence. Where a label is one for several sequences that follow each
  // other, labels and weights are those of such groups, in their order.
  Tensor sequence_label_S;
  Tensor sequence_weight_S;  // fp32: weight of its loss in the reported sum, 0 or 1
  // fp32: sequence_weight_S * loss scale / sequences of the global batch
  Tensor sequence_gradient_weight_S;
  // int64 and int32: the sample of each sequence, and the place of its first token there.
  Tensor sequence_sample_S, sequence_position_S;

  // The samples of tokens, for models with experts whose samples have any length; else empty.
  Tensor
      sample_number_T;    // int32: the sample that a token belongs to; -1 for a token that fills up
  Tensor sample_share_S;  // fp32: 1 / tokens of each sample, wherever these are

  // The tokens of models with an encoder, where everything above is the decoder's; else empty.
  EncoderBatch encoder;
  SpanBatch spans;

  MtpBatch mtp;  // empty without multi-token prediction

  int64_t num_tokens() const { return tokens_T.numel(); }
  int64_t num_sequences() const { return cu_seqlens.numel() - 1; }
  // The same batch with the tokens, labels and weights of a depth of multi-token prediction.
  MicroBatch AtDepth(int64_t depth) const {
    MicroBatch batch = *this;
    batch.tokens_T = mtp.tokens_DT.Select(0, depth);
    batch.labels_T = mtp.labels_DT.Select(0, depth);
    batch.loss_weight_T = mtp.loss_weight_DT.Select(0, depth);
    batch.gradient_weight_T = mtp.gradient_weight_DT.Select(0, depth);
    return batch;
  }
};

// The most depths of multi-token prediction.
constexpr int64_t kMostMtpDepths = 4;
// Its tensors, each [D, T].
constexpr Tensor MtpBatch::*kMtpFields[] = {&MtpBatch::tokens_DT, &MtpBatch::labels_DT,
                                            &MtpBatch::loss_weight_DT,
                                            &MtpBatch::gradient_weight_DT};

}  // namespace megatron

#endif  // MEGATRON_LAYERS_MICRO_BATCH_H_
