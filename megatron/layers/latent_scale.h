// The scale of latent attention's scores.
#ifndef MEGATRON_LAYERS_LATENT_SCALE_H_
#define MEGATRON_LAYERS_LATENT_SCALE_H_

#include <cmath>

#include "megatron/layers/transformer_options.h"

namespace megatron {

// Returns 1 / sqrt(kv_channels), which YaRN makes larger: by the square of m(mscale_all_dim), with
// m(x) = 1 + 0.1 x ln(factor).
inline float LatentSoftmaxScale(const TransformerOptions& options) {
  const YarnOptions& yarn = options.rotary_options.yarn;
  const double magnitude =
      yarn.factor > 1 ? 1 + 0.1 * yarn.mscale_all_dim * std::log(yarn.factor) : 1;
  return static_cast<float>(magnitude * magnitude /
                            std::sqrt(static_cast<double>(options.kv_channels)));
}

}  // namespace megatron

#endif  // MEGATRON_LAYERS_LATENT_SCALE_H_
