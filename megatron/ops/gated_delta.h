// The gated delta rule (S. Yang et al., "Gated Delta Networks", arXiv 2412.06464) over packed
// sequences. Each value head has a state S [K, E], which is zero in front of a sequence:
//
//   S' = exp(-softplus(raw decay_t + bias) exp(a_log)) S_{t-1}
//   S_t = S' + beta_t k_t (v_t - S'^T k_t)^T,   beta_t = 1 / (1 + exp(-raw beta_t))
//   out_t = S_t^T q_t / sqrt(K)
//
// with queries and keys divided by their norms, sqrt(sum of squares + 1e-6). A query and key head
// serves the value heads of its group.
//
// It is computed in chunks of kGatedDeltaChunk tokens, counted from the beginning of each sequence,
// by the products of matrices and a triangular system. So a sequence's results do not depend, to
// the bit, on the number of threads, on the other sequences of the batch, or on which of the groups
// this rank holds. Memory and work grow linearly with the number of tokens.
//
// Legend: T tokens, G groups, R value heads of each, K width of a query and key head, E of a value
// head, H value heads (G R).
#ifndef MEGATRON_OPS_GATED_DELTA_H_
#define MEGATRON_OPS_GATED_DELTA_H_

#include <cstdint>

#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron::ops {

constexpr int64_t kGatedDeltaChunk = 64;

// All have the same dtype (fp32, bf16 or fp16). Those with tokens may have any strides, but the
// last dim is contiguous; those of heads are contiguous.
struct GatedDeltaInputs {
  Tensor q_TGK, k_TGK, v_TGRE;
  Tensor beta_TGR, decay_TGR;  // before sigmoid and softplus
  Tensor bias_H, a_log_H;
};

// fp32 memory in which the op works, of the shapes of the functions below. Not every device uses
// all of it.
struct GatedDeltaScratch {
  Tensor states;
  Tensor keys_THK, values_THE;
  // For backward alone; that of the values has their shape, and that of the states theirs.
  Tensor state_gradients, value_gradients_THE, token_sums;
};
Shape GatedDeltaStates(const GatedDeltaInputs& in);
Shape GatedDeltaKeys(const GatedDeltaInputs& in);
Shape GatedDeltaValues(const GatedDeltaInputs& in);
Shape GatedDeltaTokenSums(const GatedDeltaInputs& in);

// Writes out (=, contiguous, the inputs' dtype). cu_seqlens is int32 [sequences + 1], first 0, last
// T.
void GatedDeltaForward(const Stream& stream, const Tensor& cu_seqlens, const GatedDeltaInputs& in,
                       const GatedDeltaScratch& scratch, const Tensor& out_TGRE);

// Writes the gradients of the tensors with tokens (=, the inputs' dtype), and adds those of bias
// and a_log (+=, fp32). dout is contiguous.
void GatedDeltaBackward(const Stream& stream, const Tensor& cu_seqlens, const GatedDeltaInputs& in,
                        const Tensor& dout_TGRE, const GatedDeltaScratch& scratch,
                        const GatedDeltaInputs& gradients);

// Does what GatedDeltaForward does for sequences that come in portions, a token at a time: the
// inputs have their new tokens, and `state` [sequences, H, K, E] (contiguous, fp32) the states
// behind those in front, which are replaced. A sequence whose first new token has position 0
// (position is int32 [T]) begins with it; one without new tokens keeps its state. How a sequence is
// cut into portions, and which others there are, changes no bit. The order of sums is not that of
// chunks.
void GatedDeltaContinue(const Stream& stream, const Tensor& cu_seqlens, const Tensor& position_T,
                        const GatedDeltaInputs& in, const Tensor& state_SHKE,
                        const Tensor& out_TGRE);

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_GATED_DELTA_H_
