// RMSNorm with a gate, of each part of a row by itself: behind the gate (Mamba-2) or in front of it
// (gated delta nets).
//
//   behind    y = rms(x silu(z)) gamma
//   in front  y = rms(x) gamma silu(z),      rms(v) = v / sqrt(mean of v^2 + epsilon)
//
// All parts of a row may be normalized together instead, also where ranks have some of them each:
//
//   GatedNormSums(...) on each rank, add them up over ranks, GatedNormForward(...)
//   GatedNormGradientSums(...) on each rank, add them up over ranks, GatedNormBackward(...)
//
// Legend: T tokens, G parts of a row, S width of a part. Tensors with tokens may also be
// [T, G, R, S], with R parts in each of G groups.
#ifndef MEGATRON_OPS_GATED_NORM_H_
#define MEGATRON_OPS_GATED_NORM_H_

#include <cstdint>

#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron::ops {

struct GatedNorm {
  float epsilon = 1e-5f;
  bool norm_before_gate = false;
  // Where set, rows are normalized in whole: the sums of GatedNormSums and, for backward, of
  // GatedNormGradientSums, over all ranks (fp32), and the number of columns that these go over.
  Tensor squares_T, products_T;
  int64_t columns = 0;
};

// All have the same dtype (fp32, bf16 or fp16). x and z may have any strides, but the last dim is
// contiguous. gamma is contiguous: [parts, S], or [1, S] for all parts.
struct GatedNormInputs {
  Tensor x_TGS, z_TGS, gamma_GS;
};

// sums (fp32, =): of the parts of each row that are here, the sum of squares of what is normalized.
void GatedNormSums(const Stream& stream, const GatedNorm& norm, const GatedNormInputs& in,
                   const Tensor& sums_T);

// Writes y (=, contiguous).
void GatedNormForward(const Stream& stream, const GatedNorm& norm, const GatedNormInputs& in,
                      const Tensor& y_TGS);

// sums (fp32, =): of the parts of each row that are here, the sum of what is normalized times the
// gradient behind its norm, dy gamma or dy gamma silu(z). dy is contiguous.
void GatedNormGradientSums(const Stream& stream, const GatedNorm& norm, const GatedNormInputs& in,
                           const Tensor& dy_TGS, const Tensor& sums_T);

// Writes the gradients of x and z (=, any strides, but the last dim is contiguous), and adds that
// of gamma (+=, fp32). dy is contiguous; the gradient of x may be its memory.
void GatedNormBackward(const Stream& stream, const GatedNorm& norm, const GatedNormInputs& in,
                       const Tensor& dy_TGS, const GatedNormInputs& gradients);

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_GATED_NORM_H_
