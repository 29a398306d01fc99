// Permutation of rows between the order of tokens and the order of the experts that they go to.
//
// Legend: T tokens, K choices per token, C copies of a choice (ranks that each hold a part of the
// expert), H columns, R rows in expert order, L experts per rank. Rows are fp32, bf16 or fp16;
// probabilities are fp32. A place is the row of a (token, choice, copy), or -1 if the choice was
// dropped; int32. All tensors are contiguous. Sums are formed in fp32 in the order of (k, c) and
// rounded once. There are no atomics, and results do not depend on the number of threads.
#ifndef MEGATRON_OPS_MOE_PERMUTE_H_
#define MEGATRON_OPS_MOE_PERMUTE_H_

#include <cstdint>

#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron::ops {

// place (=): rows ordered by (expert / L, copy, expert, token), so the rows of one rank stand
// together. rows (=, int64 [E / L, C, L]): the number of rows of each. Experts < 0 are dropped
// choices. If `padded` is not 0, each expert has that many rows, which must suffice; its rows
// behind the choices are unused. With several `parts` rows are ordered by the part of its rank's
// experts that an expert is in, and within it as above.
void PlaceByExpert(const Stream& stream, const Tensor& expert_TK, const Tensor& place_TKC,
                   const Tensor& rows_RCL, int64_t padded = 0, int64_t parts = 1);
// The first of a rank's experts that is in the part, or behind it: where L experts are cut into
// parts, expert l is in part l * parts / L.
inline int64_t FirstOfPart(int64_t part, int64_t parts, int64_t experts) {
  return (part * experts + parts - 1) / parts;
}

// out[place[t, k, c]] = x[t]. Unused rows are left as they are, here and in UnpermuteBackward.
void Permute(const Stream& stream, const Tensor& x_TH, const Tensor& place_TKC,
             const Tensor& out_RH);
// dx (=): dx[t] = sum over k, c of dout[place[t, k, c]].
void PermuteBackward(const Stream& stream, const Tensor& dout_RH, const Tensor& place_TKC,
                     const Tensor& dx_TH);

// y (=): y[t] = sum over k of probability[t, k] times the sum over c of x[place[t, k, c]].
void Unpermute(const Stream& stream, const Tensor& x_RH, const Tensor& place_TKC,
               const Tensor& probability_TK, const Tensor& y_TH);
// Writes dx (=) and dprobability (=), which is 0 for dropped choices.
void UnpermuteBackward(const Stream& stream, const Tensor& dy_TH, const Tensor& x_RH,
                       const Tensor& place_TKC, const Tensor& probability_TK, const Tensor& dx_RH,
                       const Tensor& dprobability_TK);

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_MOE_PERMUTE_H_
