// Eigen's matrix product, with which the benchmarks compare ours.
#ifndef MEGATRON_OPS_CPU_EIGEN_MATMUL_H_
#define MEGATRON_OPS_CPU_EIGEN_MATMUL_H_

#include <cstdint>

namespace megatron::ops {

// Row-major fp32 matrices without gaps.
struct EigenMatmul {
  // y[m, n] = x[m, k] w[n, k]^T
  void (*forward)(const float* x, const float* w, float* y, int64_t m, int64_t n, int64_t k);
  // dx[m, n] = dy[m, k] w[k, n]
  void (*backward_input)(const float* dy, const float* w, float* dx, int64_t m, int64_t n,
                         int64_t k);
  // dw[m, n] += dy[k, m_total]^T x[k, n], for m of dy's columns
  void (*backward_weight)(const float* dy, int64_t m_total, const float* x, float* dw, int64_t m,
                          int64_t n, int64_t k);
};

namespace avx2 {
extern const EigenMatmul kEigenMatmul;
}
namespace avx512 {
extern const EigenMatmul kEigenMatmul;
}

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_CPU_EIGEN_MATMUL_H_
