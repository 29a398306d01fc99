// Vec's functions over arrays, for vec_test.
#ifndef MEGATRON_OPS_CPU_VEC_TEST_KERNELS_H_
#define MEGATRON_OPS_CPU_VEC_TEST_KERNELS_H_

#include <cstdint>

#include "megatron/base/philox.h"
#include "megatron/tensor/dtype.h"

namespace megatron::ops {

struct VecTestKernels {
  int lanes;
  void (*exp)(const float* in, int64_t count, float* out);
  void (*log)(const float* in, int64_t count, float* out);
  void (*erf)(const float* in, int64_t count, float* out);
  void (*to_bfloat16)(const float* in, int64_t count, BFloat16* out);
  void (*to_float16)(const float* in, int64_t count, Float16* out);
  void (*from_bfloat16)(const BFloat16* in, int64_t count, float* out);
  void (*from_float16)(const Float16* in, int64_t count, float* out);
  float (*sum)(const float* in);  // over `lanes` floats
  float (*max)(const float* in);
  void (*dropout_scales)(PhiloxKey key, uint64_t sample, uint32_t position, int64_t first_column,
                         int64_t count, uint32_t threshold, float scale, float* out);
};

namespace avx2 {
extern const VecTestKernels kVecTestKernels;
}
namespace avx512 {
extern const VecTestKernels kVecTestKernels;
}

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_CPU_VEC_TEST_KERNELS_H_
