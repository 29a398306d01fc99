// fp16 for the emulation: see cuda_runtime.h.
#ifndef MEGATRON_OPS_CUDA_EMULATION_INCLUDE_CUDA_FP16_H_
#define MEGATRON_OPS_CUDA_EMULATION_INCLUDE_CUDA_FP16_H_

#include <cstdint>

#include "megatron/tensor/dtype.h"

struct __half {
  uint16_t bits;
};

inline float __half2float(__half x) { return megatron::ToFloat(megatron::Float16{x.bits}); }
inline __half __float2half_rn(float x) { return {megatron::ToFloat16(x).bits}; }

#endif  // MEGATRON_OPS_CUDA_EMULATION_INCLUDE_CUDA_FP16_H_
