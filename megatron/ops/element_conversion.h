// The elements of a floating tensor, to fp32 and back, for code that is written once for all types.
#ifndef MEGATRON_OPS_ELEMENT_CONVERSION_H_
#define MEGATRON_OPS_ELEMENT_CONVERSION_H_

#include "megatron/tensor/dtype.h"
#include "megatron/tensor/tensor.h"

namespace megatron::ops {

inline float ToFloat(float x) { return x; }
using megatron::ToFloat;

inline void FromFloat(float from, float* to) { *to = from; }
inline void FromFloat(float from, BFloat16* to) { *to = ToBFloat16(from); }
inline void FromFloat(float from, Float16* to) { *to = ToFloat16(from); }

// Calls body with the elements of x, which is a floating tensor.
template <typename Body>
void WithElements(const Tensor& x, const Body& body) {
  switch (x.dtype()) {
    case DType::kBFloat16:
      return body(x.data<BFloat16>());
    case DType::kFloat16:
      return body(x.data<Float16>());
    default:
      return body(x.data<float>());
  }
}

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_ELEMENT_CONVERSION_H_
