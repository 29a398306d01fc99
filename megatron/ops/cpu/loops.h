// Loops over arrays in vectors, with a partial vector at the end, and dispatch by element type.
//
// Only sources of cpu_kernel_library include it (see vec.h).
#ifndef MEGATRON_OPS_CPU_LOOPS_H_
#define MEGATRON_OPS_CPU_LOOPS_H_

#include "megatron/ops/cpu/vec.h"

namespace megatron::ops::MEGATRON_ISA {

// Loads and stores of a whole vector, and of the first `lanes` lanes.
struct WholeVec {
  template <typename T>
  MEGATRON_INLINE_MEMBER Vec load(const T* p) const {
    return Load(p);
  }
  template <typename T>
  MEGATRON_INLINE_MEMBER void store(T* p, Vec a) const {
    Store(p, a);
  }
};
struct PartOfVec {
  int lanes;
  template <typename T>
  MEGATRON_INLINE_MEMBER Vec load(const T* p) const {
    return LoadPartial(p, lanes);
  }
  template <typename T>
  MEGATRON_INLINE_MEMBER void store(T* p, Vec a) const {
    StorePartial(p, a, lanes);
  }
};

// Calls body(access, i) for i = 0, kLanes, ... below count; `access` loads and stores at i.
template <typename Body>
MEGATRON_INLINE void ForEachVec(int64_t count, Body body) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) body(WholeVec(), i);
  if (i < count) body(PartOfVec{static_cast<int>(count - i)}, i);
}

// Calls body(p) with a null pointer of the element type.
template <typename Body>
MEGATRON_INLINE void WithType(DType dtype, Body body) {
  switch (dtype) {
    case DType::kFloat32:
      return body(static_cast<float*>(nullptr));
    case DType::kBFloat16:
      return body(static_cast<BFloat16*>(nullptr));
    case DType::kFloat16:
      return body(static_cast<Float16*>(nullptr));
    default:
      __builtin_trap();  // the ops check dtypes
  }
}

// Converts an untyped pointer to T*, if `type` is a T*.
template <typename T>
MEGATRON_INLINE T* As(T*, void* p) {
  return static_cast<T*>(p);
}
template <typename T>
MEGATRON_INLINE const T* As(T*, const void* p) {
  return static_cast<const T*>(p);
}

}  // namespace megatron::ops::MEGATRON_ISA

#endif  // MEGATRON_OPS_CPU_LOOPS_H_
