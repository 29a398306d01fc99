#include "megatron/layers/moe/quantile_bias.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace megatron {
namespace {

// Returns where `wanted` tokens lie below, in bins.
double Quantile(absl::Span<const int64_t> counts, double wanted) {
  double below = 0;
  for (size_t bin = 0; bin < counts.size(); ++bin) {
    const double here = static_cast<double>(counts[bin]);
    if (here > 0 && below + here >= wanted)
      return static_cast<double>(bin) + (wanted - below) / here;
    below += here;
  }
  return static_cast<double>(counts.size());
}

}  // namespace

void FindQuantileBiases(absl::Span<const int64_t> counts, int64_t topk, absl::Span<float> bias) {
  const size_t experts = bias.size(), bins = counts.size() / experts;
  const int64_t tokens =
      std::accumulate(counts.begin(), counts.begin() + static_cast<int64_t>(bins), int64_t{0});
  if (tokens == 0) return;
  const auto [lowest, highest] = std::minmax_element(bias.begin(), bias.end());
  const double low = *lowest - 1.0;
  const double width = (*highest + 1.0 - low) / static_cast<double>(bins);
  const double wanted =
      static_cast<double>(tokens) * static_cast<double>(topk) / static_cast<double>(experts);
  std::vector<double> found(experts);
  for (size_t e = 0; e < experts; ++e)
    found[e] = low + width * Quantile(counts.subspan(e * bins, bins), wanted);
  const double mean =
      std::accumulate(found.begin(), found.end(), 0.0) / static_cast<double>(experts);
  for (size_t e = 0; e < experts; ++e) bias[e] = static_cast<float>(found[e] - mean);
}

}  // namespace megatron
