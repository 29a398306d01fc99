#include "megatron/ops/cpu/eigen_matmul.h"

// Eigen's templates are in a separate namespace for each instruction set: see
// bazel/cpu_kernels.bzl.
#define Eigen eigen::MEGATRON_ISA
#include "Eigen/Core"

namespace megatron::ops::MEGATRON_ISA {
namespace {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using In = Eigen::Map<const Matrix, 0, Eigen::OuterStride<>>;
using Out = Eigen::Map<Matrix>;

In View(const float* data, int64_t rows, int64_t columns, int64_t stride) {
  return In(data, rows, columns, Eigen::OuterStride<>(stride));
}

void Forward(const float* x, const float* w, float* y, int64_t m, int64_t n, int64_t k) {
  Out(y, m, n).noalias() = View(x, m, k, k) * View(w, n, k, k).transpose();
}
void BackwardInput(const float* dy, const float* w, float* dx, int64_t m, int64_t n, int64_t k) {
  Out(dx, m, n).noalias() = View(dy, m, k, k) * View(w, k, n, n);
}
void BackwardWeight(const float* dy, int64_t m_total, const float* x, float* dw, int64_t m,
                    int64_t n, int64_t k) {
  Out(dw, m, n).noalias() += View(dy, k, m, m_total).transpose() * View(x, k, n, n);
}

}  // namespace

const EigenMatmul kEigenMatmul = {Forward, BackwardInput, BackwardWeight};

}  // namespace megatron::ops::MEGATRON_ISA
