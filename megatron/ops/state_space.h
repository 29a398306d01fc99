// The recurrence of Mamba-2 (T. Dao and A. Gu, "Transformers are SSMs", arXiv 2405.21060) over
// packed sequences. Each head has a state S [N, P], which is zero in front of a sequence:
//
//   step_t = softplus(raw step_t + step bias)
//   S_t    = exp(-step_t exp(a_log)) S_{t-1} + step_t B_t x_t^T
//   y_t    = S_t^T C_t + skip x_t
//
// It is computed in chunks of kStateSpaceChunk tokens, counted from the beginning of each sequence:
// as matrix products within a chunk, and from chunk to chunk by the state. So a sequence's results
// do not depend, to the bit, on the number of threads, on the other sequences of the batch, or on
// which of the groups this rank holds. Memory and work grow linearly with the number of tokens.
//
// Legend: T tokens, G groups of heads, R heads of each, P channels of a head, N size of the state,
// H heads (G R), C chunks.
#ifndef MEGATRON_OPS_STATE_SPACE_H_
#define MEGATRON_OPS_STATE_SPACE_H_

#include <cstdint>

#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron::ops {

constexpr int64_t kStateSpaceChunk = 64;

// All have the same dtype (fp32, bf16 or fp16). Those with tokens may have any strides, but the
// last dim is contiguous; those of heads are contiguous. B writes the state and C reads it.
struct StateSpaceInputs {
  Tensor x_TGRP, b_TGN, c_TGN, step_TGR;
  Tensor step_bias_H, a_log_H, skip_H;
};

// Returns the shape of the states at the beginnings of chunks, which is that of scratch memory.
Shape StateSpaceStates(const StateSpaceInputs& in);
// Returns the shape of the sums over the tokens of chunks.
Shape StateSpaceSums(const StateSpaceInputs& in);

// Writes y (=, contiguous, the inputs' dtype). cu_seqlens is int32 [sequences + 1], first 0, last
// T. `states` is scratch memory, fp32.
void StateSpaceForward(const Stream& stream, const Tensor& cu_seqlens, const StateSpaceInputs& in,
                       const Tensor& states, const Tensor& y_TGRP);

// fp32 memory in which the backward pass works. Not every device uses all of it.
struct StateSpaceScratch {
  Tensor states, state_gradients, sums;
};

// Writes the gradients of x, B, C and the raw steps (=, the inputs' dtype), and adds those of step
// bias, a_log and skip (+=, fp32). dy is contiguous.
void StateSpaceBackward(const Stream& stream, const Tensor& cu_seqlens, const StateSpaceInputs& in,
                        const Tensor& dy_TGRP, const StateSpaceScratch& scratch,
                        const StateSpaceInputs& gradients);

// Does what StateSpaceForward does for sequences that come in portions, a token at a time: the
// inputs have their new tokens, and `state` [sequences, H, N, P] (contiguous, fp32) the states
// behind those in front, which are replaced. A sequence whose first new token has position 0
// (position is int32 [T]) begins with it; one without new tokens keeps its state. How a sequence is
// cut into portions, and which others there are, changes no bit. The order of sums is not that of
// chunks.
void StateSpaceContinue(const Stream& stream, const Tensor& cu_seqlens, const Tensor& position_T,
                        const StateSpaceInputs& in, const Tensor& state_SHNP, const Tensor& y_TGRP);

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_STATE_SPACE_H_
