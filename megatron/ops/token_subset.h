// A random subset of the tokens of each sample, and the rows of tensors that belong to it.
//
// The word of a token is word 0 of Philox(key; {sample low, sample high, position, 0}). Of each
// sample the tokens with the smallest words are kept; of equal words the first. So the subset
// depends on the key, the sample and the number of tokens that are kept, and on nothing else.
//
// Legend: T tokens, in samples of equal length, K kept tokens.
#ifndef MEGATRON_OPS_TOKEN_SUBSET_H_
#define MEGATRON_OPS_TOKEN_SUBSET_H_

#include <cstdint>

#include "megatron/base/philox.h"
#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron::ops {

struct TokenSubset {
  Tensor kept_K;      // int32: the kept tokens, ascending
  Tensor place_T;     // int32: the place of each token among those kept, or -1
  Tensor bypass_T;    // int32: the token itself if it is not kept, or -1
  Tensor cu_seqlens;  // int32 [samples + 1]: the kept tokens of each sample
};

// Chooses K / samples tokens of each of `samples` samples of T / samples tokens. sample_T (int64)
// and position_T (int32) are each token's sample and its place there. Writes subset's tensors. The
// CPU alone has this op.
void ChooseTokens(const Stream& stream, PhiloxKey key, int64_t samples, const Tensor& sample_T,
                  const Tensor& position_T, const TokenSubset& subset);

// y[k] = x[kept[k]], for x of one number (int32 or int64) a token. The CPU alone has this op; rows
// of activations are gathered by EmbeddingForward.
void GatherNumbers(const Stream& stream, const Tensor& kept_K, const Tensor& x_T,
                   const Tensor& y_K);

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_TOKEN_SUBSET_H_
