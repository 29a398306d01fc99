// Medians of measurements.
#ifndef MEGATRON_BASE_MEDIAN_H_
#define MEGATRON_BASE_MEDIAN_H_

#include <algorithm>
#include <cstddef>
#include <vector>

namespace megatron {

// Returns the value at this place in ascending order. `values` has one there.
template <typename T>
T NthSmallest(std::vector<T> values, size_t n) {
  const auto place = values.begin() + static_cast<std::ptrdiff_t>(n);
  std::nth_element(values.begin(), place, values.end());
  return *place;
}

// Returns the median of values, at least one; of two in the middle, the upper one.
template <typename T>
T Median(const std::vector<T>& values) {
  return NthSmallest(values, values.size() / 2);
}

// The same; of two in the middle, the lower one, so that the greater of two values is above it.
template <typename T>
T LowerMedian(const std::vector<T>& values) {
  return NthSmallest(values, (values.size() - 1) / 2);
}

}  // namespace megatron

#endif  // MEGATRON_BASE_MEDIAN_H_
