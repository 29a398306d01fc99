// The options of a norm (norm.h).
#ifndef MEGATRON_OPS_NORM_OPTIONS_H_
#define MEGATRON_OPS_NORM_OPTIONS_H_

namespace megatron::ops {

struct Norm {
  enum Kind { kLayerNorm, kRmsNorm };
  Kind kind = kLayerNorm;
  float epsilon = 1e-5f;
  bool zero_centered_gamma = false;  // the scale is 1 + gamma ("layernorm 1p")
  // Whether a LayerNorm has beta. Without it, beta_H and its gradient are empty. RMSNorm has none.
  bool bias = true;
};

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_NORM_OPTIONS_H_
