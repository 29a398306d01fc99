// A matrix product as cuBLASLt sees it, and what tells its kernels apart. Plain data: known in
// builds without CUDA, too.
#ifndef MEGATRON_OPS_CUDA_GEMM_GEMM_H_
#define MEGATRON_OPS_CUDA_GEMM_GEMM_H_

#include <cstdint>
#include <ostream>
#include <string>
#include <tuple>

#include "megatron/tensor/dtype.h"
#include "megatron/tensor/float8.h"

namespace megatron::ops::cuda {

// What is done besides, in the product's own pass. GELU is cuBLASLt's, by its approximation with
// tanh, of sums that are not rounded.
enum class GemmEpilogue {
  kBias,         // c += bias [m] over rows, where there is one
  kGelu,         // c = GELU(aux), aux [m, n] = c + bias
  kGeluSlope,    // c *= GELU'(aux), sums [m] = those of c's rows
  kBiasGradient  // sums [n] = those of op(b)'s columns
};

// c [m, n] = op(a) op(b) (+ c), all column-major, products in fp32. Bias and sums are of c's dtype;
// sums are written, never added to what is there.
struct Gemm {
  int64_t m = 0, n = 0, k = 0;
  DType in = DType::kFloat32, out = DType::kFloat32;
  // Where `in` is kUInt8, which stands for 8-bit floats; each operand then has an inverse scale.
  Float8Format a_format = Float8Format::kE4M3, b_format = Float8Format::kE4M3;
  bool transpose_a = false, transpose_b = false;
  int64_t lda = 0, ldb = 0, ldc = 0;
  bool accumulate = false;
  GemmEpilogue epilogue = GemmEpilogue::kBias;
  // The alignments that a kernel may count on: addresses differ from call to call, kernels do not.
  int64_t alignment = 16;
  int64_t bias_alignment = 0;  // or of the sums; 0: neither

  auto Key() const {
    return std::make_tuple(m, n, k, in, out, a_format, b_format, transpose_a, transpose_b, lda, ldb,
                           ldc, accumulate, epilogue, alignment, bias_alignment);
  }
  friend bool operator<(const Gemm& x, const Gemm& y) { return x.Key() < y.Key(); }
  friend bool operator==(const Gemm& x, const Gemm& y) { return x.Key() == y.Key(); }
};

inline std::ostream& operator<<(std::ostream& out, const Gemm& gemm) {
  out << "product of " << gemm.m << " x " << gemm.n << " x " << gemm.k << " in ";
  if (gemm.in != DType::kUInt8) return out << Name(gemm.in);
  return out << Name(gemm.a_format) << " and " << Name(gemm.b_format);
}

// What cuBLASLt calls the configuration of an algorithm (cublasLtMatmulAlgoConfigAttributes_t).
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

// Where a plan holds: another library may number its kernels otherwise, another GPU prefer others.
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

// A kernel chosen by time.
struct GemmPlan {
  GemmPlace place;
  Gemm gemm;
  GemmKernel kernel;
  double microseconds = 0;        // a run took, when it was chosen
  double first_microseconds = 0;  // and one of the kernel that cuBLASLt thinks best
};

}  // namespace megatron::ops::cuda

#endif  // MEGATRON_OPS_CUDA_GEMM_GEMM_H_
