// How far results of ops may lie from exact ones: one place for all tests of ops.
#ifndef MEGATRON_OPS_TOLERANCES_H_
#define MEGATRON_OPS_TOLERANCES_H_

#include "megatron/tensor/dtype.h"

namespace megatron::ops {

// Half a unit in the last place, relative: what one rounding to the dtype costs.
constexpr double RoundingError(DType dtype) {
  switch (dtype) {
    case DType::kBFloat16:
      return 1.0 / 256;
    case DType::kFloat16:
      return 1.0 / 2048;
    default:
      return 1.0 / (1 << 24);
  }
}

// Between an op on operands of this dtype and the exact result on the same (rounded) operands,
// relative to the largest magnitude in the result: the rounding of the output, of the fp32
// arithmetic inside (sums of up to some thousand terms), and, where a 16-bit intermediate is
// stored, of that.
constexpr double OpTolerance(DType dtype) {
  return dtype == DType::kFloat32 ? 2e-6 : 2 * RoundingError(dtype);
}

// Between an analytic fp32 gradient and a central difference, relative to the largest gradient:
// the difference's own error dominates (step 1e-2 to the second order, and fp32 noise over the
// step).
constexpr double kFiniteDifferenceTolerance = 2e-3;

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_TOLERANCES_H_
