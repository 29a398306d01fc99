// Rotary position embedding (J. Su et al., "RoFormer", arXiv 2104.09864).
//
// The first 2P of a head's D dims are rotated: pair p < P by the angle position *
// inverse_frequency[p]. Half-split pairs are (p, p + P), interleaved ones (2p, 2p + 1). Legend: T
// tokens, P pairs, S positions.
#ifndef MEGATRON_OPS_ROPE_H_
#define MEGATRON_OPS_ROPE_H_

#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron::ops {

// Fills the fp32 tables on the CPU from the inverse frequencies, in double precision before
// rounding. Rotations also multiply by `magnitude`.
void FillRopeTables(const double* inverse_frequency, const Tensor& cos_SP, const Tensor& sin_SP,
                    double magnitude = 1);

// Rotates x in place. x is [T, heads..., D] (1 or 2 dims of heads, any strides, last dim
// contiguous); position is int32. `inverse` rotates back (with a magnitude it does not divide by
// it), which is the backward pass.
void Rope(const Stream& stream, const Tensor& cos_SP, const Tensor& sin_SP,
          const Tensor& position_T, bool interleaved, bool inverse, const Tensor& x);

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_ROPE_H_
