// LayerNorm and RMSNorm of rows whose columns are cut evenly over ranks (2D, 2.5D and 3D tensor
// parallelism).
//
//   CutNormSums(...) on each rank, gather the parts, CutNormForward(...)
//   CutNormGradientSums(...) on each rank, add them up over ranks, CutNormBackward(...)
//
// The tensors are those of norm.h, of this rank's columns, with rows of dim 0 alone. Statistics of
// parts are combined as means and sums of squared deviations, so that they lose no digits where the
// mean is large.
//
// Legend: T rows, H columns of this rank, P ranks.
#ifndef MEGATRON_OPS_CUT_NORM_H_
#define MEGATRON_OPS_CUT_NORM_H_

#include <cstdint>

#include "megatron/ops/norm.h"

namespace megatron::ops {

// sums (fp32, =): of each row's part the mean, and the sum of squared deviations from it; for
// RMSNorm 0 and the sum of squares.
void CutNormSums(const Stream& stream, const Norm& norm, const Tensor& x_TH, const Tensor& sums_T2);
// Writes the statistics of whole rows and this rank's columns of y, from the sums of all ranks.
void CutNormForward(const Stream& stream, const Norm& norm, const Tensor& x_TH,
                    const Tensor& sums_PT2, const NormTensors& tensors, const Tensor& y_TH);
// sums (fp32, =): of each row's part the sum of dy * gamma, and that of dy * gamma times the
// normalized x.
void CutNormGradientSums(const Stream& stream, const Norm& norm, const Tensor& dy_TH,
                         const Tensor& x_TH, const NormTensors& tensors, const Tensor& sums_T2);
// NormBackward for this rank's columns of `columns`, from the sums over all ranks.
void CutNormBackward(const Stream& stream, const Norm& norm, int64_t columns, const Tensor& dy_TH,
                     const Tensor& x_TH, const NormTensors& tensors, const Tensor& sums_T2,
                     const Tensor& dresidual_TH, const Tensor& dx_TH, const Tensor& dgamma_H,
                     const Tensor& dbeta_H, const Tensor& dbias_H);

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_CUT_NORM_H_
