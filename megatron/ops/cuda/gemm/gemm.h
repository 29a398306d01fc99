// A matrix product in the terms of cuBLASLt, and the attributes that distinguish its kernels. Plain
// data, also used in builds without CUDA.
#ifndef MEGATRON_OPS_CUDA_GEMM_GEMM_H_
#define MEGATRON_OPS_CUDA_GEMM_GEMM_H_

#include <cstdint>
#include <ostream>
#include <string>
#include <tuple>

#include "megatron/tensor/dtype.h"
#include "megatron/tensor/float8_format.h"
#include "megatron/tensor/float8_scaling.h"

namespace megatron::ops::cuda {

// Bytes at the start of the stream's workspace that cuBLASLt uses. Hopper's kernels want this much
// to choose freely.
constexpr int64_t kGemmWorkspaceBytes = int64_t{32} << 20;

// Work that is fused into the product. GELU is cuBLASLt's: the approximation with tanh, of sums
// that are not rounded.
enum class GemmEpilogue {
  kBias,         // c += bias [m] over rows, where there is one
  kGelu,         // c = GELU(aux), aux [m, n] = c + bias
  kGeluSlope,    // c *= GELU'(aux), sums [m] = those of c's rows
  kBiasGradient  // sums [n] = those of op(b)'s columns
};

// c [m, n] = op(a) op(b) (+ c). All matrices are column-major; products are in fp32. Bias and sums
// have the dtype of c; sums are written (=).
struct Gemm {
  int64_t m = 0, n = 0, k = 0;
  DType in = DType::kFloat32, out = DType::kFloat32;
  // The formats if `in` is kUInt8, which stands for 8-bit floats. Each operand then has an inverse
  // scale, or one for each part.
  Float8Format a_format = Float8Format::kE4M3, b_format = Float8Format::kE4M3;
  Float8Scaling a_scaling = Float8Scaling::kTensor, b_scaling = Float8Scaling::kTensor;
  bool transpose_a = false, transpose_b = false;
  int64_t lda = 0, ldb = 0, ldc = 0;
  bool accumulate = false;
  GemmEpilogue epilogue = GemmEpilogue::kBias;
  // The alignments that a kernel may rely on: addresses differ from call to call, but the kernel
  // stays.
  int64_t alignment = 16;
  int64_t bias_alignment = 0;  // alignment of the bias or the sums; 0: neither

  auto Key() const {
    return std::make_tuple(m, n, k, in, out, a_format, b_format, a_scaling, b_scaling, transpose_a,
                           transpose_b, lda, ldb, ldc, accumulate, epilogue, alignment,
                           bias_alignment);
  }
  friend bool operator<(const Gemm& x, const Gemm& y) { return x.Key() < y.Key(); }
  friend bool operator==(const Gemm& x, const Gemm& y) { return x.Key() == y.Key(); }
};

inline std::ostream& operator<<(std::ostream& out, const Gemm& gemm) {
  out << "product of " << gemm.m << " x " << gemm.n << " x " << gemm.k << " in ";
  if (gemm.in != DType::kUInt8) return out << Name(gemm.in);
  return out << Name(gemm.a_format) << " and " << Name(gemm.b_format)
             << (gemm.a_scaling == Float8Scaling::kTensor ? "" : " with scales of parts");
}

// The configuration of an algorithm of cuBLASLt (cublasLtMatmulAlgoConfigAttributes_t).
struct GemmKernel {
  int64_t id = 0, tile = 0, stages = 0, split_k = 0, reduction = 0, swizzle = 0, custom = 0,
          inner_shape = 0, cluster_shape = 0;

  friend bool operator==(const GemmKernel& x, const GemmKernel& y) {
    return std::tie(x.id, x.tile, x.stages, x.split_k, x.reduction, x.swizzle, x.custom,
                    x.inner_shape, x.cluster_shape) == std::tie(y.id, y.tile, y.stages, y.split_k,
                                                                y.reduction, y.swizzle, y.custom,
                                                                y.inner_shape, y.cluster_shape);
  }
};

// The machine for which a plan holds: another library may number its kernels differently, and
// another GPU may prefer other kernels.
struct GemmPlace {
  std::string gpu;  // "NVIDIA H200"
  int64_t cublaslt_version = 0;

  friend bool operator<(const GemmPlace& x, const GemmPlace& y) {
    return std::tie(x.gpu, x.cublaslt_version) < std::tie(y.gpu, y.cublaslt_version);
  }
  friend bool operator==(const GemmPlace& x, const GemmPlace& y) {
    return x.gpu == y.gpu && x.cublaslt_version == y.cublaslt_version;
  }
};

// A kernel that was chosen by timing.
struct GemmPlan {
  GemmPlace place;
  Gemm gemm;
  GemmKernel kernel;
  double microseconds = 0;        // time of a run when it was chosen
  double first_microseconds = 0;  // the time of cuBLASLt's first choice
};

}  // namespace megatron::ops::cuda

#endif  // MEGATRON_OPS_CUDA_GEMM_GEMM_H_
