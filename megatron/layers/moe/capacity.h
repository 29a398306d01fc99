// Arithmetic of mixture-of-experts layers: the tokens an expert takes, and the weights of losses.
#ifndef MEGATRON_LAYERS_MOE_CAPACITY_H_
#define MEGATRON_LAYERS_MOE_CAPACITY_H_

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "glog/logging.h"
#include "megatron/layers/layer_context.h"
#include "megatron/layers/moe/moe_options.h"

namespace megatron {

// The tokens of each sample of the micro-batch, all of equal lengths: those that this
// context-parallel rank holds, and all of them.
inline int64_t SampleTokensHere(const MicroBatch& batch) {
  CHECK_EQ(batch.num_tokens() % batch.num_samples, 0) << batch.num_samples;
  return batch.num_tokens() / batch.num_samples;
}
inline int64_t SampleLength(const LayerContext& ctx) {
  return SampleTokensHere(*ctx.batch) * ctx.context_group.size();
}

// The number of tokens that an expert takes of a sample.
inline int64_t ExpertCapacity(const MoeOptions& options, int64_t sample_length) {
  const double share = static_cast<double>(options.router.topk * sample_length) /
                       static_cast<double>(options.num_experts);
  return std::min(sample_length,
                  static_cast<int64_t>(std::ceil(share * options.capacity_factor.value())));
}

// The factor of the sum over a unit's tokens and experts of score * count. E / (K N^2) makes the
// balance loss of a unit of N tokens out of it, which is 1 where all experts are chosen alike; the
// loss of a unit of several samples counts once for each sample.
inline double BalanceFactor(const MoeOptions& options, int64_t unit_length, int64_t samples) {
  const double length = static_cast<double>(unit_length);
  return static_cast<double>(options.num_experts * samples) /
         (static_cast<double>(options.router.topk) * length * length);
}

}  // namespace megatron

#endif  // MEGATRON_LAYERS_MOE_CAPACITY_H_
