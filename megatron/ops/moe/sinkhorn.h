// Balanced choices without a loss: biases of experts that, added to the logits, make all experts
// equally wanted.
//
// The rows and columns of the matrix exp(logits) are scaled by factors so that every token has the
// same sum and every expert has the same sum. Rows and columns are normalized in turn (R. Sinkhorn
// and P. Knopp; for experts A. Clark et al., "S-BASE", arXiv 2202.01169) until the columns' factors
// change by less than 1e-4 on average, as in Megatron. A row's factor does not change which expert
// is best for the row, so only the columns' factors matter; their logarithms are the biases.
#ifndef MEGATRON_OPS_MOE_SINKHORN_H_
#define MEGATRON_OPS_MOE_SINKHORN_H_

#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron::ops {

constexpr double kSinkhornTolerance = 1e-4, kSinkhornEpsilon = 1e-8;
// The limit of rounds. If hardly any token wants an expert, the factors are too large to reach the
// tolerance.
constexpr int kMostSinkhornRounds = 200;

// Writes bias (=) for tokens that are balanced together. Tensors are fp32 and contiguous.
void SinkhornBias(const Stream& stream, const Tensor& logits_TE, const Tensor& bias_E);

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_MOE_SINKHORN_H_
