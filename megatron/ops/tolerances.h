// Tolerances of the tests of ops: how far a result may be from the exact one.
#ifndef MEGATRON_OPS_TOLERANCES_H_
#define MEGATRON_OPS_TOLERANCES_H_

#include "megatron/tensor/dtype.h"

namespace megatron::ops {

// Half a unit in the last place, relative: the error of one rounding to the dtype.
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

// Tolerance between an op on operands of this dtype and the exact result on the same (rounded)
// operands, relative to the largest magnitude in the result. It covers the rounding of the output,
// of the fp32 arithmetic inside (sums of up to some thousand terms), and of a 16-bit intermediate
// that is stored.
constexpr double OpTolerance(DType dtype) {
  return dtype == DType::kFloat32 ? 2e-6 : 2 * RoundingError(dtype);
}

// Tolerance between an analytic fp32 gradient and a central difference, relative to the largest
// gradient. The difference's own error dominates: second order in the step of 1e-2, and fp32 noise
// divided by the step.
constexpr double kFiniteDifferenceTolerance = 2e-3;

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_TOLERANCES_H_
