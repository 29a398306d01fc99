// Softmax attention over packed sequences without the S x S matrix in memory.
//
// Tokens of several sequences lie one after another; cu_seqlens says where each begins, so padding
// costs nothing and documents do not see each other. Heads are grouped: group g has R query heads
// and one key and value head (R = 1: multi-head; one group: multi-query). Legend: T query tokens, U
// key tokens, G groups, R query heads a group, D head size.
//
// Sequences may be here in part, and their keys come part by part: the places of queries and keys
// say which see which, and results of the parts are merged (S. Rabe and C. Staats, arXiv
// 2112.05682). So ranks work on one sequence together.
//
// A query that sees no key gets zeros and an lse of minus infinity, and gives no gradient. What a
// sequence gets depends, to the bit, neither on the number of threads nor on the other sequences of
// the batch, nor on which of the heads this rank holds.
//
// T. Dao, "FlashAttention-2", arXiv 2307.08691.
#ifndef MEGATRON_OPS_ATTENTION_H_
#define MEGATRON_OPS_ATTENTION_H_

#include "megatron/ops/dropout.h"
#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron::ops {

// On a CUDA device; the CPU has one kernel.
enum class AttentionKernel {
  kOwn,
  kHopper,  // those for compute capability 9.0 where they take the call (cuda/hopper), else kOwn
  kCudnn,   // cuDNN's where it takes the call (cuda/cudnn), else kOwn
  kCudnnDeterministic,  // the same with gradients of equal bits each time, for more memory
};

struct Attention {
  AttentionKernel kernel = AttentionKernel::kOwn;
  float scale = 1;
  // A query sees the keys of its own sequence, all of them or, if causal, those up to its own place
  // counted from the sequence's end (equal lengths: the usual triangle).
  bool causal = true;
  // int32, both or neither: each query's and each key's place in its whole sequence, ascending
  // within it. A causal query then sees the keys up to its own place.
  Tensor place_q_T, place_k_U;
  Tensor cu_seqlens_q, cu_seqlens_k;  // int32 [sequences + 1], first 0, last T or U
  int64_t max_seqlen_q = 0, max_seqlen_k = 0;
  // On the probabilities. The uniform word of (query, key): word (j % 4) of Philox(key; {sample
  // low, sample high, position of the query in its sample, j / 4}) with `key` derived once more per
  // global head: DeriveKey(key.lo | key.hi << 32, kPhiloxDropout, head, 0), j the key's place,
  // or its index counted from the sequence's first key. first_column is this rank's first global
  // query head.
  Dropout dropout;
  // The keys are further ones of the same queries: Forward merges into the out and lse of the parts
  // before, Backward does dq +=. Needs fp32 out and dq.
  bool add_to_queries = false;
  // Backward: dk += and dv +=. Needs fp32 dk and dv.
  bool add_to_keys = false;
};

// All but the bias may have any strides, the last dim is contiguous: q, k and v are usually views
// into one packed projection.
struct AttentionInputs {
  Tensor q_TGRD, k_UGD, v_UGD;
  // fp32 [W, G R], or empty. Row w is added to each head's scaled scores of keys that are w - W / 2
  // places behind the query; those further away, to either side, count as that far. W is odd.
  // Places are counted from the sequence's end, where they are not given.
  Tensor bias_WN;
};

// out (=) and lse (fp32 [T, G, R], =): the log-sum-exp of each row of scaled scores, which backward
// needs. out has the inputs' dtype or is fp32.
void AttentionForward(const Stream& stream, const Attention& attention, const AttentionInputs& in,
                      const Tensor& out_TGRD, const Tensor& lse_TGR);

// Gradients (=) of q, k, v, each of the inputs' dtype or fp32, from what forward read and wrote;
// that of the bias is added (+=). out has the inputs' dtype. With keys that come in parts, out and
// lse are those of all keys.
void AttentionBackward(const Stream& stream, const Attention& attention, const AttentionInputs& in,
                       const Tensor& out_TGRD, const Tensor& lse_TGR, const Tensor& dout_TGRD,
                       const AttentionInputs& gradients);

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_ATTENTION_H_
