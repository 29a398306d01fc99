// What the server of a secure sum (secure_sum.h) makes of it: the mean of the islands' clipped
// updates, with noise.
#ifndef MEGATRON_FEDERATED_NOISY_MEAN_H_
#define MEGATRON_FEDERATED_NOISY_MEAN_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "megatron/federated/secure_sum.h"

namespace megatron {

// Removes the masks from `sum`, the sum of the masked vectors of so many islands, adds a discrete
// Gaussian with a standard deviation of noise_multiplier * clip_norm to each element, none where
// noise_multiplier is 0, and divides by the number of islands. `mean` has the size of `sum`, which
// is undefined afterwards.
//
// So many threads share the elements, each with a generator that the system seeds.
void UnmaskedMean(const std::vector<Mask>& masks, int islands, double clip_norm,
                  double noise_multiplier, int threads, absl::Span<uint32_t> sum,
                  absl::Span<float> mean);

}  // namespace megatron

#endif  // MEGATRON_FEDERATED_NOISY_MEAN_H_
