// Kernels of moe/permute.h for one token.
#ifndef MEGATRON_OPS_CPU_MOE_ROW_KERNELS_H_
#define MEGATRON_OPS_CPU_MOE_ROW_KERNELS_H_

#include <cstdint>

#include "megatron/tensor/dtype.h"

namespace megatron::ops {

// Rows place[i] of x, each of `columns` elements; a negative place means no row.
struct PlacedRows {
  DType dtype = DType::kFloat32;
  int64_t columns = 0;
  const void* x = nullptr;
  const int32_t* place = nullptr;
  int64_t count = 0;
  int64_t per_weight = 1;  // consecutive places that share a weight
};

struct MoeRowKernels {
  // out = sum of the rows, each times weight[i / per_weight] unless `weight` is null.
  void (*sum_rows)(const PlacedRows& rows, const float* weight, void* out);
  // out = factor * a; returns a . b.
  float (*scale_row_and_dot)(DType dtype, int64_t columns, const void* a, const void* b,
                             float factor, void* out);
};

namespace avx2 {
extern const MoeRowKernels kMoeRowKernels;
}  // namespace avx2
namespace avx512 {
extern const MoeRowKernels kMoeRowKernels;
}  // namespace avx512

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_CPU_MOE_ROW_KERNELS_H_
