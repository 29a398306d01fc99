// 8-bit floats for the emulation: see cuda_runtime.h.
#ifndef MEGATRON_OPS_CUDA_EMULATION_INCLUDE_CUDA_FP8_H_
#define MEGATRON_OPS_CUDA_EMULATION_INCLUDE_CUDA_FP8_H_

#include <cmath>

#include "megatron/tensor/float8.h"

using __nv_fp8_storage_t = unsigned char;
enum __nv_saturation_t { __NV_SATFINITE };
enum __nv_fp8_interpretation_t { __NV_E4M3, __NV_E5M2 };

// Infinity becomes the largest number, as on the device.
inline __nv_fp8_storage_t __nv_cvt_float_to_fp8(float x, __nv_saturation_t,
                                                __nv_fp8_interpretation_t interpretation) {
  const megatron::Float8Format format =
      interpretation == __NV_E4M3 ? megatron::Float8Format::kE4M3 : megatron::Float8Format::kE5M2;
  if (std::isinf(x)) x = std::copysign(megatron::Float8Max(format), x);
  return megatron::FloatToFloat8(format, x);
}

#endif  // MEGATRON_OPS_CUDA_EMULATION_INCLUDE_CUDA_FP8_H_
