#include "megatron/data/length_schedule.h"

#include <algorithm>
#include <cmath>

#include "glog/logging.h"

namespace megatron {

int64_t LengthSchedule::At(int64_t step) const {
  CHECK(enabled());
  if (!lengths.empty()) {
    CHECK_EQ(lengths.size(), last_steps.size() + 1);
    const auto last = std::lower_bound(last_steps.begin(), last_steps.end(), step);
    return lengths[static_cast<size_t>(last - last_steps.begin())];
  }
  if (step >= total_steps) return max;
  const double share =
      std::pow(static_cast<double>(step) / static_cast<double>(total_steps), 1.0 / root_degree);
  const auto length = static_cast<int64_t>(
      std::floor(share * static_cast<double>(max - min) + static_cast<double>(min)));
  return std::min(length - length % multiple, max);
}

int64_t LengthSchedule::SumOver(int64_t steps) const {
  int64_t sum = 0, summed = 0;
  for (const int64_t last : last_steps) {
    const int64_t end = std::min(last, steps);
    if (end > summed) sum += (end - summed) * At(end);
    summed = std::max(summed, end);
  }
  for (; summed < std::min(total_steps, steps); ++summed) sum += At(summed + 1);
  return sum + (steps - summed) * At(steps);
}

}  // namespace megatron
