// The factor of vectors that are rotated with LongRoPE.
#ifndef MEGATRON_LAYERS_LONGROPE_SCALE_H_
#define MEGATRON_LAYERS_LONGROPE_SCALE_H_

#include <cmath>

namespace megatron {

// Returns the factor for a model whose context grew from `original` positions, at least 2, to
// `positions`.
inline double LongRopeMagnitude(double positions, double original) {
  return positions > original ? std::sqrt(1 + std::log(positions / original) / std::log(original))
                              : 1;
}

}  // namespace megatron

#endif  // MEGATRON_LAYERS_LONGROPE_SCALE_H_
