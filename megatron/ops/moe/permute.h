// Rows of tokens, in the order of the experts they go to, and back.
//
// Legend: T tokens, K choices of a token, C copies of a choice (ranks that each hold a part of the
// expert), H columns, R rows in expert order. Rows are fp32, bf16 or fp16; probabilities fp32;
// places int32: the row of a (token, choice, copy), or -1 where the choice was dropped. All is
// contiguous. Sums are formed in fp32 in the order of (k, c) and rounded once; no atomics: results
// do not depend on the number of threads.
#ifndef MEGATRON_OPS_MOE_PERMUTE_H_
#define MEGATRON_OPS_MOE_PERMUTE_H_

#include <cstdint>

#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron::ops {

// place (=): rows ordered by (expert / L, copy, expert, token), with L experts that one rank holds:
// what goes to one rank stands together. rows (=, int64 [E / L, C, L]): how many there are of each.
// experts < 0 are dropped choices. With `padded` each expert has so many rows, which must do; those
// behind its choices are nobody's.
void PlaceByExpert(const Stream& stream, const Tensor& expert_TK, const Tensor& place_TKC,
                   const Tensor& rows_RCL, int64_t padded = 0);

// out[place[t, k, c]] = x[t]. Rows that are nobody's stay as they are, here and in
// UnpermuteBackward.
void Permute(const Stream& stream, const Tensor& x_TH, const Tensor& place_TKC,
             const Tensor& out_RH);
// dx (=): dx[t] = sum over k, c of dout[place[t, k, c]].
void PermuteBackward(const Stream& stream, const Tensor& dout_RH, const Tensor& place_TKC,
                     const Tensor& dx_TH);

// y (=): y[t] = sum over k of probability[t, k] times the sum over c of x[place[t, k, c]].
void Unpermute(const Stream& stream, const Tensor& x_RH, const Tensor& place_TKC,
               const Tensor& probability_TK, const Tensor& y_TH);
// dx (=), dprobability (=), which is 0 where the choice was dropped.
void UnpermuteBackward(const Stream& stream, const Tensor& dy_TH, const Tensor& x_RH,
                       const Tensor& place_TKC, const Tensor& probability_TK, const Tensor& dx_RH,
                       const Tensor& dprobability_TK);

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_MOE_PERMUTE_H_
