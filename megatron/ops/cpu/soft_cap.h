// Scores and logits that grow up to a cap: cap tanh(x / cap).
//
// Only sources of cpu_kernel_library include it (see vec.h).
#ifndef MEGATRON_OPS_CPU_SOFT_CAP_H_
#define MEGATRON_OPS_CPU_SOFT_CAP_H_

#include "megatron/ops/cpu/vec.h"

namespace megatron::ops::MEGATRON_ISA {

// tanh(x) to a few units in the last place, also for small x: there the series is used, since what
// is left of 1 less a number near 1 would have few digits.
MEGATRON_INLINE Vec TanhOfAny(Vec x) {
  constexpr float kSeries[] = {0.00359212804f, -0.00886323552f, 0.0218694885f, -0.0539682540f,
                               0.133333333f,   -0.333333333f,   1.0f};
  const Vec near = x * Polynomial(kSeries, x * x);
  const Vec size = Abs(x);
  const Vec far = Set(1.0f) - Set(2.0f) / (Set(1.0f) + Exp(size + size));
  return Select(Less(size, Set(0.35f)), near, CopySign(far, x));
}

MEGATRON_INLINE Vec SoftCapOf(Vec x, float cap) { return Set(cap) * TanhOfAny(x * Set(1 / cap)); }

// Returns the derivative of SoftCapOf where it has the value y, which may be minus infinity where
// an element is hidden.
MEGATRON_INLINE Vec SoftCapSlope(Vec y, float cap) {
  const Vec tanh = Max(y * Set(1 / cap), Set(-1.0f));
  return NegatedFma(tanh, tanh, Set(1.0f));
}

}  // namespace megatron::ops::MEGATRON_ISA

#endif  // MEGATRON_OPS_CPU_SOFT_CAP_H_
