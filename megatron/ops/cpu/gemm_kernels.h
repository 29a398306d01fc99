// The arguments of a matrix product, and its kernels; gemm.h says what is computed.
#ifndef MEGATRON_OPS_CPU_GEMM_KERNELS_H_
#define MEGATRON_OPS_CPU_GEMM_KERNELS_H_

#include <cstdint>

#include "megatron/ops/activation_type.h"
#include "megatron/tensor/dtype.h"

namespace megatron::ops {

// Element (row, column) is data[row * row_stride + column * column_stride]. One of the strides is
// 1.
struct GemmOperand {
  const void* data = nullptr;
  int64_t row_stride = 0, column_stride = 0;
};

// Rows of `stride` elements.
struct GemmResult {
  void* data = nullptr;
  int64_t stride = 0;
};

enum class GemmEpilogue {
  kStore,       // c = scale * sum + bias
  kActivate,    // pre = sum + bias (stored), c = activation(pre)
  kSlope,       // c = sum * activation'(pre)
  kAccumulate,  // c += scale * sum; c is fp32
};

struct Gemm {
  int64_t m = 0, n = 0, k = 0;
  DType dtype = DType::kFloat32;  // all matrices but an accumulated c have it
  GemmOperand a, b;               // M x K, K x N
  GemmEpilogue epilogue = GemmEpilogue::kStore;
  Activation activation = Activation::kNone;
  float scale = 1;             // 1 if the epilogue does not use it
  const void* bias = nullptr;  // [N], or none
  GemmResult c, pre;
  float* row_sums = nullptr;  // [M] += sums of a's rows, or none; only where a's row_stride is 1
};

// A product can be split at panels; the bits do not depend on the split.
struct GemmRegion {
  int64_t first_row_panel, end_row_panel, first_column_panel, end_column_panel;
};

struct GemmKernels {
  int64_t panel_rows, panel_columns;
  int64_t workspace_floats;
  void (*run)(const Gemm& gemm, const GemmRegion& region, float* workspace);
};

namespace avx2 {
extern const GemmKernels kGemmKernels;
}
namespace avx512 {
extern const GemmKernels kGemmKernels;
}
// These multiply bf16 matrices only.
namespace avx512_bf16 {
extern const GemmKernels kGemmKernels;
}
namespace amx_bf16 {
extern const GemmKernels kGemmKernels;
}

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_CPU_GEMM_KERNELS_H_
