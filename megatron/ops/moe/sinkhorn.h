// Balanced choices without a loss: numbers of experts which, added to the logits, make all of them
// equally wanted.
//
// Of the matrix exp(logits), factors of its rows and columns are sought that give every token the
// same sum, and every expert: by normalizing rows and columns in turn (R. Sinkhorn and P. Knopp;
// for experts A. Clark et al., "S-BASE", arXiv 2202.01169), until the columns' factors change by
// less than 1e-4 in the mean, as in Megatron. A row's factor does not change which of its experts
// is the best: what counts are the columns', whose logarithms are biases.
#ifndef MEGATRON_OPS_MOE_SINKHORN_H_
#define MEGATRON_OPS_MOE_SINKHORN_H_

#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron::ops {

constexpr double kSinkhornTolerance = 1e-4, kSinkhornEpsilon = 1e-8;
// Where an expert is wanted by hardly any token the factors are too large for the tolerance.
constexpr int kMostSinkhornRounds = 200;

// bias (=), of the tokens that are balanced together. fp32, contiguous.
void SinkhornBias(const Stream& stream, const Tensor& logits_TE, const Tensor& bias_E);

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_MOE_SINKHORN_H_
