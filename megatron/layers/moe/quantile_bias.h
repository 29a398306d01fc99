// Quantile balancing: the biases that would have given each expert its share of the tokens, found
// from the margins of a step's tokens (ops::CountMargins), as Megatron finds them.
#ifndef MEGATRON_LAYERS_MOE_QUANTILE_BIAS_H_
#define MEGATRON_LAYERS_MOE_QUANTILE_BIAS_H_

#include <cstdint>

#include "absl/types/span.h"

namespace megatron {

// `counts` has the tokens of each expert's bins, expert by expert, and `bias` the biases that the
// tokens were routed with. Each becomes the margin below which there are tokens * topk / experts,
// interpolated within its bin; then their mean is taken off. Without tokens nothing changes.
void FindQuantileBiases(absl::Span<const int64_t> counts, int64_t topk, absl::Span<float> bias);

}  // namespace megatron

#endif  // MEGATRON_LAYERS_MOE_QUANTILE_BIAS_H_
