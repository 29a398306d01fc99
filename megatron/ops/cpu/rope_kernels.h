// Rotation of heads in place; ops/rope.h says what is computed.
#ifndef MEGATRON_OPS_CPU_ROPE_KERNELS_H_
#define MEGATRON_OPS_CPU_ROPE_KERNELS_H_

#include <cstdint>

#include "megatron/tensor/dtype.h"

namespace megatron::ops {

struct RopeRotation {
  const float *cos = nullptr, *sin = nullptr;  // [S, pairs]
  int64_t pairs = 0;
  const int32_t* position = nullptr;
  bool interleaved = false, inverse = false;

  // [token, outer head, inner head, D]; strides count elements.
  DType dtype = DType::kFloat32;
  void* x = nullptr;
  int64_t outer_heads = 1, inner_heads = 1;
  int64_t token_stride = 0, outer_stride = 0, inner_stride = 0;
};

namespace avx2 {
// Tokens [begin, end); scratch has room for 4 * pairs floats.
void RopeTokens(const RopeRotation& rotation, int64_t begin, int64_t end, float* scratch);
}  // namespace avx2
namespace avx512 {
void RopeTokens(const RopeRotation& rotation, int64_t begin, int64_t end, float* scratch);
}  // namespace avx512

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_CPU_ROPE_KERNELS_H_
