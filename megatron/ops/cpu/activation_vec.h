// Activations and their derivatives on vectors.
//
// Only sources of cpu_kernel_library include it (see vec.h).
#ifndef MEGATRON_OPS_CPU_ACTIVATION_VEC_H_
#define MEGATRON_OPS_CPU_ACTIVATION_VEC_H_

#include "megatron/ops/activation_type.h"
#include "megatron/ops/cpu/vec.h"

namespace megatron::ops::MEGATRON_ISA {

MEGATRON_INLINE Vec Sigmoid(Vec x) { return Set(1.0f) / (Set(1.0f) + Exp(Zero() - x)); }

MEGATRON_INLINE Vec Tanh(Vec x) { return Set(2.0f) * Sigmoid(x + x) - Set(1.0f); }

// (1 + tanh(u)) / 2 = sigmoid(2 u) with u = sqrt(2 / pi) (x + 0.044715 x^3).
MEGATRON_INLINE Vec GeluTanhGate(Vec x) {
  const Vec cubic = Fma(x * x, Set(0.0713548163f), Set(1.59576912f));
  return Sigmoid(x * cubic);
}
MEGATRON_INLINE Vec GeluErfGate(Vec x) {
  return Fma(Erf(x * Set(0.707106781f)), Set(0.5f), Set(0.5f));
}

// The derivative of x sigmoid(x).
MEGATRON_INLINE Vec SiluSlope(Vec x, Vec sigmoid) {
  return sigmoid * Fma(x, Set(1.0f) - sigmoid, Set(1.0f));
}

template <Activation kActivation>
MEGATRON_INLINE Vec Activate(Vec x) {
  if constexpr (kActivation == Activation::kGeluTanh) return x * GeluTanhGate(x);
  if constexpr (kActivation == Activation::kGeluErf) return x * GeluErfGate(x);
  if constexpr (kActivation == Activation::kSquaredRelu) {
    const Vec positive = Max(Zero(), x);
    return positive * positive;
  }
  if constexpr (kActivation == Activation::kTanh) return Tanh(x);
  if constexpr (kActivation == Activation::kRelu) return Max(Zero(), x);
  if constexpr (kActivation == Activation::kSilu) return x * Sigmoid(x);
  if constexpr (kActivation == Activation::kQuickGelu) return x * Sigmoid(Set(1.702f) * x);
  if constexpr (kActivation == Activation::kSigmoid) return Sigmoid(x);
  return x;
}

template <Activation kActivation>
MEGATRON_INLINE Vec ActivationSlope(Vec x) {
  if constexpr (kActivation == Activation::kGeluTanh) {
    const Vec t = Min(Set(16.0f), Max(Set(-16.0f), x));  // the gate is exactly 0 or 1 beyond
    const Vec gate = GeluTanhGate(t);
    const Vec inner = Fma(t * t, Set(0.214064449f), Set(1.59576912f));
    return Fma(t * gate * (Set(1.0f) - gate), inner, gate);
  }
  if constexpr (kActivation == Activation::kGeluErf) {
    const Vec density = Exp(x * x * Set(-0.5f)) * Set(0.398942280f);
    return Fma(x, density, GeluErfGate(x));
  }
  if constexpr (kActivation == Activation::kSquaredRelu) return Set(2.0f) * Max(Zero(), x);
  if constexpr (kActivation == Activation::kTanh) {
    const Vec tanh = Tanh(x);
    return Set(1.0f) - tanh * tanh;
  }
  if constexpr (kActivation == Activation::kRelu) return Select(Less(Zero(), x), Set(1.0f), Zero());
  if constexpr (kActivation == Activation::kSilu) return SiluSlope(x, Sigmoid(x));
  if constexpr (kActivation == Activation::kSigmoid) {
    const Vec sigmoid = Sigmoid(x);
    return sigmoid * (Set(1.0f) - sigmoid);
  }
  if constexpr (kActivation == Activation::kQuickGelu) {
    const Vec scaled = Set(1.702f) * x, sigmoid = Sigmoid(scaled);
    return sigmoid * Fma(scaled, Set(1.0f) - sigmoid, Set(1.0f));
  }
  return Set(1.0f);
}

}  // namespace megatron::ops::MEGATRON_ISA

#endif  // MEGATRON_OPS_CPU_ACTIVATION_VEC_H_
