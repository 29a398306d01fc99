// Kernels of dropout.h and norm.h for one row of activations.
#ifndef MEGATRON_OPS_CPU_ROW_KERNELS_H_
#define MEGATRON_OPS_CPU_ROW_KERNELS_H_

#include <cstdint>

#include "megatron/base/philox.h"
#include "megatron/tensor/dtype.h"

namespace megatron::ops {

// Dropout of one row. A threshold of 0 keeps everything and draws nothing.
struct RowDropout {
  PhiloxKey key;
  uint32_t threshold = 0;
  float scale = 1;
  uint64_t sample = 0;
  uint32_t position = 0;
  int64_t first_column = 0;
};

struct RowNorm {
  DType dtype = DType::kFloat32;
  int64_t columns = 0;
  bool centered = true;  // LayerNorm; else RMSNorm
  bool zero_centered_gamma = false;
  float epsilon = 0;
  const void* gamma = nullptr;
  const void* beta = nullptr;  // or none
};

// The arguments of norm_backward for one row.
struct RowNormBackward {
  const void* dy;
  const void* x;
  float mean, rstd;
  const void* dresidual;  // or none
  void* dx;
  float* dgamma;  // += , or none
  float* dbeta;   // += , or none
};

struct RowKernels {
  // out = residual + dropout(x + bias); bias and residual may be null.
  void (*bias_dropout_add)(DType dtype, const RowDropout& dropout, const void* x, const void* bias,
                           const void* residual, void* out, int64_t columns);
  // dx = mask and scale of the dropout applied to dy; sums += dx, unless it is null.
  void (*dropout_backward)(DType dtype, const RowDropout& dropout, const void* dy, void* dx,
                           float* sums, int64_t columns);
  // `mean` is written only if the norm is centered.
  void (*norm)(const RowNorm& norm, const void* x, void* y, float* mean, float* rstd);
  void (*norm_backward)(const RowNorm& norm, const RowNormBackward& row);
  // out[0, count) += rows of `stride` floats, in their order.
  void (*add_rows)(const float* rows, int64_t num_rows, int64_t stride, float* out, int64_t count);
};

namespace avx2 {
extern const RowKernels kRowKernels;
}
namespace avx512 {
extern const RowKernels kRowKernels;
}

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_CPU_ROW_KERNELS_H_
