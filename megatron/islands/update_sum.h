// How the server of the outer optimizer makes one outer gradient of the updates of islands.
#ifndef MEGATRON_ISLANDS_UPDATE_SUM_H_
#define MEGATRON_ISLANDS_UPDATE_SUM_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace megatron {

// Returns kDataLoss for an update that may not be in a sum: one with an infinity or a NaN.
absl::Status CheckUpdate(absl::Span<const float> update);

// Fills `gradient` with the mean of the updates, at least one, in which each weighs the same. Adds
// them in fp32 in their order, which is that of islands, and multiplies the sum with the reciprocal
// of their number: the bits of islands in one world (optim/outer_optimizer.h). kOutOfRange if the
// sum is not finite.
absl::Status MeanOfUpdates(const std::vector<absl::Span<const float>>& updates,
                           absl::Span<float> gradient);

}  // namespace megatron

#endif  // MEGATRON_ISLANDS_UPDATE_SUM_H_
