// A short convolution of each channel over the tokens of its sequence, and SiLU behind it:
//
//   s_t = bias + sum over i of w_i x_{t-W+1+i},   y_t = s_t / (1 + exp(-s_t))
//
// Tokens in front of the sequence are zero. Sequences are packed, as in attention.h.
//
// Legend: T tokens, G groups of channels, K channels of a group, W taps, the last of which meets
// the token itself.
#ifndef MEGATRON_OPS_CAUSAL_CONV_H_
#define MEGATRON_OPS_CAUSAL_CONV_H_

#include <cstdint>

#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron::ops {

constexpr int64_t kMostConvTaps = 16;

// All have the same dtype (fp32, bf16 or fp16). x may have any strides, but the last dim is
// contiguous; the others are contiguous. The bias may be empty.
struct CausalConvInputs {
  Tensor x_TGK, weight_GKW, bias_GK;
};

// Writes y (=, contiguous). cu_seqlens is int32 [sequences + 1], first 0, last T.
void CausalConvForward(const Stream& stream, const Tensor& cu_seqlens, const CausalConvInputs& in,
                       const Tensor& y_TGK);

// Writes the gradient of x (=, strides as those of x) and adds those of the weight and of the bias,
// where there is one (+=, fp32). dy is contiguous.
void CausalConvBackward(const Stream& stream, const Tensor& cu_seqlens, const CausalConvInputs& in,
                        const Tensor& dy_TGK, const CausalConvInputs& gradients);

// Does what CausalConvForward does for sequences that come in portions: x has their new tokens, and
// `recent` [sequences, W - 1, G, K] (contiguous, the inputs' dtype) the rows in front of these,
// which are replaced by the last ones. A sequence whose first new token has position 0 (position is
// int32 [T]) begins with it; one without new tokens keeps its rows. On the CPU results have the
// bits of a pass over whole sequences.
void CausalConvContinue(const Stream& stream, const Tensor& cu_seqlens, const Tensor& position_T,
                        const CausalConvInputs& in, const Tensor& recent_SWGK, const Tensor& y_TGK);

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_CAUSAL_CONV_H_
