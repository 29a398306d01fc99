// Rows of activations as packed fp32 tiles, whose rows take whole vectors, and back.
//
// Only sources of cpu_kernel_library include it (see vec.h).
#ifndef MEGATRON_OPS_CPU_PACKED_ROWS_H_
#define MEGATRON_OPS_CPU_PACKED_ROWS_H_

#include <cstdint>

#include "megatron/ops/cpu/vec.h"

namespace megatron::ops::MEGATRON_ISA {

inline int64_t RoundUp(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

// out[0, padded) = scale * in[0, count) in fp32, followed by zeros; padded is a multiple of kLanes.
template <typename T>
void Widen(const T* in, int64_t count, float scale, int64_t padded, float* out) {
  int64_t d = 0;
  for (; d + kLanes <= count; d += kLanes) Store(out + d, Load(in + d) * Set(scale));
  if (d < count) {
    Store(out + d, LoadPartial(in + d, static_cast<int>(count - d)) * Set(scale));
    d += kLanes;
  }
  for (; d < padded; d += kLanes) Store(out + d, Zero());
}

// out[0, count) = scale * in[0, count).
template <typename T>
void Narrow(const float* in, int64_t count, float scale, T* out) {
  int64_t d = 0;
  for (; d + kLanes <= count; d += kLanes) Store(out + d, Load(in + d) * Set(scale));
  if (d < count) StorePartial(out + d, Load(in + d) * Set(scale), static_cast<int>(count - d));
}

// p[0, count) = 0; count is a multiple of kLanes.
inline void Clear(int64_t count, float* p) {
  for (int64_t i = 0; i < count; i += kLanes) Store(p + i, Zero());
}

}  // namespace megatron::ops::MEGATRON_ISA

#endif  // MEGATRON_OPS_CPU_PACKED_ROWS_H_
