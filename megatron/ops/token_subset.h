// A random subset of the tokens of each sample, and the rows of tensors that belong to it.
//
// The word of a token is word 0 of Philox(key; {sample low, sample high, place in the sample, 0}).
// Of each sample the tokens with the smallest words are kept; of equal words the first. So the
// subset depends on the key, the sample and the number of tokens that are kept, and on nothing
// else.
//
// Legend: W tokens of whole samples, which have equal lengths, and K kept tokens of them; T and M,
// those of W and of K that a rank has.
#ifndef MEGATRON_OPS_TOKEN_SUBSET_H_
#define MEGATRON_OPS_TOKEN_SUBSET_H_

#include <cstdint>

#include "megatron/base/philox.h"
#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron::ops {

// The rows that each of `size` ranks has of samples of equal length, as layers/context_slice.h cuts
// them: of 2 * size chunks of a sample, rank r has chunks r and 2 * size - 1 - r, in this order.
struct SampleCut {
  int size = 1, rank = 0;

  // Returns the token of whole samples that is row `row` of rank `owner`.
  MEGATRON_HOST_DEVICE int64_t TokenOf(int64_t length, int64_t owner, int64_t row) const {
    if (size == 1) return row;
    const int64_t chunk = length / (2 * size), place = row % (2 * chunk);
    const int64_t number = place < chunk ? owner : 2 * size - 1 - owner;
    return row / (2 * chunk) * length + number * chunk + place % chunk;
  }
  MEGATRON_HOST_DEVICE int64_t OwnerOf(int64_t length, int64_t token) const {
    if (size == 1) return 0;
    const int64_t number = token % length / (length / (2 * size));
    return number < size ? number : 2 * size - 1 - number;
  }
  // Returns the token's row on its owner.
  MEGATRON_HOST_DEVICE int64_t RowOf(int64_t length, int64_t token) const {
    if (size == 1) return token;
    const int64_t chunk = length / (2 * size), place = token % length;
    return token / length * 2 * chunk + (place / chunk < size ? 0 : chunk) + place % chunk;
  }
};

// Chooses K / samples tokens of each of `samples` samples of W / samples tokens. sample_T (int64)
// has the ordinals of the samples, each T / samples times. Writes the kept tokens to kept_K
// (int32), ascending, and the place of each token among them, or -1, to place_W (int32).
void ChooseTokens(const Stream& stream, PhiloxKey key, int64_t samples, const Tensor& sample_T,
                  const Tensor& kept_K, const Tensor& place_W);

// The ways of rows to the ranks that have the kept tokens, and back. The ranks share out the kept
// tokens as they share out all tokens.
struct KeptRows {
  // int32: this rank's row of each kept token, or -1 where another rank has the token; the kept
  // tokens of rank 0 come first, in their order there.
  Tensor row_K;
  Tensor place_T;   // int32: the place of each of this rank's tokens in row_K, or -1
  Tensor bypass_T;  // int32: the row itself where its token is not kept, or -1
};
// Writes the tensors of *rows. kept_K and place_W are those of ChooseTokens.
void FindKeptRows(const Stream& stream, const SampleCut& cut, int64_t samples, const Tensor& kept_K,
                  const Tensor& place_W, const KeptRows& rows);

// The kept tokens that a rank has. Tensors that are empty are not written.
struct KeptPart {
  Tensor cu_seqlens;  // int32 [samples + 1]: where those of each sample begin
  Tensor place_M;     // int32: place among the kept tokens of the sample
  Tensor sample_M;    // int64: ordinal of the sample
  Tensor position_M;  // int32: place in the sample
};
// `length` is that of a sample.
void FindKeptPart(const Stream& stream, const SampleCut& cut, int64_t samples, int64_t length,
                  const Tensor& kept_K, const Tensor& sample_T, const KeptPart& part);

// y[k] = x[kept[k]], of int32. Rows of activations are gathered by EmbeddingForward.
void GatherNumbers(const Stream& stream, const Tensor& kept_K, const Tensor& x_W,
                   const Tensor& y_K);

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_TOKEN_SUBSET_H_
