// The conversion of tensor/float8.h on the device, to the bit.
#ifndef MEGATRON_OPS_CUDA_FLOAT8_CUH_
#define MEGATRON_OPS_CUDA_FLOAT8_CUH_

#include <cuda_fp8.h>

#include "megatron/ops/cuda/device.cuh"
#include "megatron/tensor/float8.h"

namespace megatron::ops::cuda {

constexpr float kLargestFloat = 3.402823466e38f;

inline __nv_fp8_interpretation_t InterpretationOf(Float8Format format) {
  return format == Float8Format::kE4M3 ? __NV_E4M3 : __NV_E5M2;
}

__device__ inline float ScaleOf(float largest_code, float amax) {
  if (!(amax > 0) || !(amax <= kLargestFloat)) return 1;
  const float scale = largest_code / amax;
  return scale <= kLargestFloat ? scale : kLargestFloat;
}

__device__ inline uint8_t Code(__nv_fp8_interpretation_t format, float x) {
  // NaN and infinity become NaN; the conversion would make infinity a large number.
  if (!(fabsf(x) <= kLargestFloat)) return 0x7f;
  return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, format);
}

__device__ inline float ValueOfE4M3(uint8_t code) {
  const int magnitude = code & 0x7f, exponent = magnitude >> 3, fraction = magnitude & 7;
  if (magnitude == 0x7f) return nanf("");
  const float value = exponent == 0 ? ldexpf(static_cast<float>(fraction), -9)
                                    : ldexpf(static_cast<float>(8 + fraction), exponent - 10);
  return (code & 0x80) != 0 ? -value : value;
}

}  // namespace megatron::ops::cuda

#endif  // MEGATRON_OPS_CUDA_FLOAT8_CUH_
