// Rounding of sizes to alignments.
#ifndef MEGATRON_BASE_ROUND_UP_H_
#define MEGATRON_BASE_ROUND_UP_H_

#include <cstdint>

namespace megatron {

// Returns the smallest multiple of `multiple` that is at least `value`. `multiple` is positive,
// `value` not negative.
constexpr int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace megatron

#endif  // MEGATRON_BASE_ROUND_UP_H_
