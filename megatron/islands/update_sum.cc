#include "megatron/islands/update_sum.h"

#include <algorithm>

#include "glog/logging.h"
#include "megatron/islands/global_copy.h"

namespace megatron {

absl::Status CheckUpdate(absl::Span<const float> update) {
  if (AllFinite(update)) return absl::OkStatus();
  return absl::DataLossError("the update has an infinity or a NaN");
}

absl::Status MeanOfUpdates(const std::vector<absl::Span<const float>>& updates,
                           absl::Span<float> gradient) {
  CHECK(!updates.empty());
  std::copy(updates[0].begin(), updates[0].end(), gradient.begin());
  for (size_t k = 1; k < updates.size(); ++k) {
    for (size_t i = 0; i < gradient.size(); ++i) gradient[i] += updates[k][i];
  }
  const float share = static_cast<float>(1.0 / static_cast<double>(updates.size()));
  if (updates.size() > 1) {
    for (float& value : gradient) value *= share;
  }
  if (AllFinite(gradient)) return absl::OkStatus();
  return absl::OutOfRangeError("the sum of the updates is not finite");
}

}  // namespace megatron
