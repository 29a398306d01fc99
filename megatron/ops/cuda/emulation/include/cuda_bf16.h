// bf16 for the emulation: see cuda_runtime.h.
#ifndef MEGATRON_OPS_CUDA_EMULATION_INCLUDE_CUDA_BF16_H_
#define MEGATRON_OPS_CUDA_EMULATION_INCLUDE_CUDA_BF16_H_

#include <cstdint>

#include "megatron/tensor/dtype.h"

struct __nv_bfloat16 {
  uint16_t bits;
};

inline float __bfloat162float(__nv_bfloat16 x) {
  return megatron::ToFloat(megatron::BFloat16{x.bits});
}
inline __nv_bfloat16 __float2bfloat16_rn(float x) { return {megatron::ToBFloat16(x).bits}; }

#endif  // MEGATRON_OPS_CUDA_EMULATION_INCLUDE_CUDA_BF16_H_
