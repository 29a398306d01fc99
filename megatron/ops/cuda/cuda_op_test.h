// What the tests of CUDA kernels share: operands, and bounds of what rounding may change.
#ifndef MEGATRON_OPS_CUDA_CUDA_OP_TEST_H_
#define MEGATRON_OPS_CUDA_CUDA_OP_TEST_H_

#include <cstdint>
#include <limits>
#include <vector>

#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "megatron/ops/cuda/agreement.h"
#include "megatron/ops/host_tensor.h"
#include "megatron/ops/tolerances.h"

namespace megatron::ops {

inline constexpr DType kF32 = DType::kFloat32;
using At = absl::Span<const Tensor>;

inline HostTensor Ints(const std::vector<double>& values, DType dtype = DType::kInt32) {
  return HostTensor::Of({static_cast<int64_t>(values.size())}, dtype, values);
}

// Returns the `count` values (i * step) % modulus.
inline HostTensor Cyclic(int64_t count, int64_t step, int64_t modulus,
                         DType dtype = DType::kInt32) {
  std::vector<double> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(static_cast<double>(i * step % modulus));
  return Ints(values, dtype);
}

// Both sides round sums of many terms, each in its own order.
inline double SumTolerance(DType dtype) { return 4 * OpTolerance(dtype); }

// An op with tensors of one dtype, on the CPU and by CUDA's kernels.
class CudaOpTest : public AgreementTest, public ::testing::WithParamInterface<DType> {
 protected:
  DType dtype() const { return GetParam(); }
  double tolerance() const { return OpTolerance(dtype()); }
  HostTensor Normal(const Shape& shape, uint32_t seed) const {
    return HostTensor::Normal(shape, dtype(), seed);
  }
  // An operand that an op writes without reading it.
  HostTensor Poisoned(const Shape& shape) const {
    HostTensor x(shape, dtype());
    for (int64_t i = 0; i < x.numel(); ++i) x.Set(i, std::numeric_limits<double>::quiet_NaN());
    return x;
  }
  // Positive: parameters of norms, second moments.
  static HostTensor Positive(const Shape& shape, DType dtype, uint32_t seed) {
    HostTensor x = HostTensor::Normal(shape, dtype, seed);
    for (int64_t i = 0; i < x.numel(); ++i) x.Set(i, 0.5 + x.Get(i) * x.Get(i));
    return x;
  }
};

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_CUDA_CUDA_OP_TEST_H_
