// RMSNorm with a gate, in parts of a row: behind the gate (Mamba-2) or in front of it (gated delta
// nets).
//
//   behind    y = rms(x silu(z)) gamma
//   in front  y = rms(x) gamma silu(z),      rms(v) = v / sqrt(mean of v^2 + epsilon)
//
// Legend: T tokens, G parts of a row, each normalized by itself, S width of a part. Tensors with
// tokens may also be [T, G, R, S], with R parts in each of G groups.
#ifndef MEGATRON_OPS_GATED_NORM_H_
#define MEGATRON_OPS_GATED_NORM_H_

#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron::ops {

struct GatedNorm {
  float epsilon = 1e-5f;
  bool norm_before_gate = false;
};

// All have the same dtype (fp32, bf16 or fp16). x and z may have any strides, but the last dim is
// contiguous. gamma is contiguous: [parts, S], or [1, S] for all parts.
struct GatedNormInputs {
  Tensor x_TGS, z_TGS, gamma_GS;
};

// Writes y (=, contiguous).
void GatedNormForward(const Stream& stream, const GatedNorm& norm, const GatedNormInputs& in,
                      const Tensor& y_TGS);

// Writes the gradients of x and z (=, any strides, but the last dim is contiguous), and adds that
// of gamma (+=, fp32). dy is contiguous; the gradient of x may be its memory.
void GatedNormBackward(const Stream& stream, const GatedNorm& norm, const GatedNormInputs& in,
                       const Tensor& dy_TGS, const GatedNormInputs& gradients);

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_GATED_NORM_H_
