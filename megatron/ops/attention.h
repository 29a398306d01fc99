// Softmax attention over packed sequences, without the S x S matrix in memory.
//
// Tokens of several sequences stand one after another, and cu_seqlens says where each sequence
// begins. So padding costs nothing, and documents do not see each other. Heads are grouped: a group
// has R query heads and one key and value head (R = 1: multi-head attention; one group: multi-query
// attention).
//
// Legend: T query tokens, U key tokens, G groups, R query heads per group, D width of a query and
// key head, E width of a value head, which may be another, W distances of the bias, N query heads
// (G R).
//
// Ranks can share a sequence (context parallelism): each has some of its queries, and the keys
// arrive in parts. The positions of queries and keys then say which sees which, and the results of
// the parts are merged (S. Rabe and C. Staats, arXiv 2112.05682).
//
// A query that sees no key gets zeros and an lse of minus infinity (with a sink, its score), and
// has no gradient. A sequence's result does not depend, to the bit, on the number of threads, on
// the other sequences of the batch, or on which of the heads this rank holds.
//
// The algorithm is that of T. Dao, "FlashAttention-2", arXiv 2307.08691.
#ifndef MEGATRON_OPS_ATTENTION_H_
#define MEGATRON_OPS_ATTENTION_H_

#include "megatron/ops/attention_kernel.h"
#include "megatron/ops/dropout.h"
#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron::ops {

struct Attention {
  AttentionKernels kernels;
  float scale = 1;
  // Where above 0, a score s becomes c tanh(s / c) of this number c. There is no bias then. Of a
  // CUDA device's kernels, kOwn alone does it.
  float softcap = 0;
  // A query sees the keys of its own sequence: all of them or, if causal, those up to its own
  // position. Positions are counted from the sequence's end, so equal lengths give the usual
  // triangle.
  bool causal = true;
  // Where above 0, a query sees of these keys those that are at most so many positions before its
  // own: a window. It must be causal then.
  int64_t window_size = 0;
  // The position of each query and key in its whole sequence, ascending within the sequence; int32,
  // both or neither. They replace the positions counted from the end.
  Tensor place_q_T, place_k_U;
  Tensor cu_seqlens_q, cu_seqlens_k;  // int32 [sequences + 1], first 0, last T or U
  int64_t max_seqlen_q = 0, max_seqlen_k = 0;
  // Dropout of the probabilities. The random word of a (query, key) pair is word (j % 4) of
  // Philox(key; {sample low, sample high, position of the query in its sample, j / 4}). j is the
  // key's position (place_k_U) or, if that is not given, its index counted from the sequence's
  // first key. The Philox key of a global head is DeriveKey(key.lo | key.hi << 32, kPhiloxDropout,
  // head, 0). first_column is this rank's first global query head.
  Dropout dropout;
  // The keys are a further part of the same queries' keys: Forward merges its result into out and
  // lse, which hold the result of the parts before; Backward does dq +=. out and dq must be fp32.
  bool add_to_queries = false;
  // Backward does dk += and dv +=, which must be fp32.
  bool add_to_keys = false;
  // fp32, one value for each head of the model, none of them negative; or empty. Forward raises the
  // values of its heads, which begin with number dropout.first_column, to their largest scaled
  // scores, where those are greater. Of a CUDA device's kernels, kOwn alone does it.
  Tensor largest_scores_N;
};

// The tensors may have any strides, but the last dim is contiguous: q, k and v are usually views of
// one packed projection. The bias is contiguous.
struct AttentionInputs {
  Tensor q_TGRD, k_UGD, v_UGE;
  // fp32, or empty. Row w is added to the scaled scores of keys that are w - W / 2 positions behind
  // the query; keys further away, to either side, take the first or last row. W is odd. Positions
  // are counted from the sequence's end if they are not given.
  Tensor bias_WN;
  // A contiguous tensor of the dtype of q, or empty. Each query has one more key then, whose value
  // is zero and whose score is the number of the query's head: a sink. If keys arrive in parts, one
  // of the calls has the sinks, whichever it is.
  Tensor sink_N;
};

// Writes out (=) and lse (=, fp32 [T, G, R]), the log-sum-exp of each row of scaled scores (with
// the sink's), which Backward needs. out has the inputs' dtype or is fp32.
void AttentionForward(const Stream& stream, const Attention& attention, const AttentionInputs& in,
                      const Tensor& out_TGRE, const Tensor& lse_TGR);

// Writes the gradients (=) of q, k and v, each of the inputs' dtype or fp32, and adds the gradients
// of the bias and of the sinks (+=, fp32); that of the sinks may be missing. It reads what Forward
// read and wrote; out has the inputs' dtype. If keys arrive in parts, out and lse are the result of
// all parts.
void AttentionBackward(const Stream& stream, const Attention& attention, const AttentionInputs& in,
                       const Tensor& out_TGRE, const Tensor& lse_TGR, const Tensor& dout_TGRE,
                       const AttentionInputs& gradients);

// Returns whether the current CUDA device and this build have what AttentionKernel::kHopper needs.
bool HopperAttentionIsAvailable();

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_ATTENTION_H_
