// Activations and their derivatives, as on the CPU. T is the type that the results are rounded to.
#ifndef MEGATRON_OPS_CUDA_ACTIVATION_CUH_
#define MEGATRON_OPS_CUDA_ACTIVATION_CUH_

#include "megatron/ops/activation_type.h"
#include "megatron/ops/cuda/device.cuh"

namespace megatron::ops::cuda {

template <typename T>
__device__ float Sigmoid(float x) {
  return Quotient<T>(1.0f, 1.0f + Exp<T>(-x));
}

// (1 + tanh(u)) / 2 = sigmoid(2 u) with u = sqrt(2 / pi) (x + 0.044715 x^3).
template <typename T>
__device__ float GeluTanhGate(float x) {
  return Sigmoid<T>(x * fmaf(x * x, 0.0713548163f, 1.59576912f));
}
__device__ inline float GeluErfGate(float x) { return fmaf(erff(x * 0.707106781f), 0.5f, 0.5f); }

template <Activation kActivation, typename T>
__device__ float Activate(float x) {
  if constexpr (kActivation == Activation::kGeluTanh) return x * GeluTanhGate<T>(x);
  if constexpr (kActivation == Activation::kGeluErf) return x * GeluErfGate(x);
  if constexpr (kActivation == Activation::kSquaredRelu) {
    const float positive = fmaxf(0.0f, x);
    return positive * positive;
  }
  if constexpr (kActivation == Activation::kTanh) return tanhf(x);
  if constexpr (kActivation == Activation::kRelu) return fmaxf(0.0f, x);
  if constexpr (kActivation == Activation::kSilu) return x * Sigmoid<T>(x);
  if constexpr (kActivation == Activation::kQuickGelu) return x * Sigmoid<T>(1.702f * x);
  if constexpr (kActivation == Activation::kSigmoid) return Sigmoid<T>(x);
  return x;
}

template <Activation kActivation, typename T>
__device__ float ActivationSlope(float x) {
  if constexpr (kActivation == Activation::kGeluTanh) {
    const float t = fminf(16.0f, fmaxf(-16.0f, x));  // the gate is exactly 0 or 1 beyond
    const float gate = GeluTanhGate<T>(t);
    return fmaf(t * gate * (1.0f - gate), fmaf(t * t, 0.214064449f, 1.59576912f), gate);
  }
  if constexpr (kActivation == Activation::kGeluErf) {
    return fmaf(x, Exp<T>(x * x * -0.5f) * 0.398942280f, GeluErfGate(x));
  }
  if constexpr (kActivation == Activation::kSquaredRelu) return 2.0f * fmaxf(0.0f, x);
  if constexpr (kActivation == Activation::kTanh) {
    const float tanh = tanhf(x);
    return 1.0f - tanh * tanh;
  }
  if constexpr (kActivation == Activation::kRelu) return x > 0.0f ? 1.0f : 0.0f;
  if constexpr (kActivation == Activation::kSilu) {
    const float sigmoid = Sigmoid<T>(x);
    return sigmoid * fmaf(x, 1.0f - sigmoid, 1.0f);
  }
  if constexpr (kActivation == Activation::kSigmoid) {
    const float sigmoid = Sigmoid<T>(x);
    return sigmoid * (1.0f - sigmoid);
  }
  if constexpr (kActivation == Activation::kQuickGelu) {
    const float scaled = 1.702f * x, sigmoid = Sigmoid<T>(scaled);
    return sigmoid * fmaf(scaled, 1.0f - sigmoid, 1.0f);
  }
  return 1.0f;
}

template <Activation kValue>
struct ActivationConstant {
  static constexpr Activation kActivation = kValue;
};

// Calls body(value) with a type whose kActivation is the activation. In a kernel all threads take
// the same branch, so one kernel serves all activations for the price of a branch per call.
template <typename Body>
__device__ void WithActivation(Activation activation, Body body) {
  switch (activation) {
    case Activation::kNone:
      return body(ActivationConstant<Activation::kNone>());
    case Activation::kGeluTanh:
      return body(ActivationConstant<Activation::kGeluTanh>());
    case Activation::kGeluErf:
      return body(ActivationConstant<Activation::kGeluErf>());
    case Activation::kSquaredRelu:
      return body(ActivationConstant<Activation::kSquaredRelu>());
    case Activation::kTanh:
      return body(ActivationConstant<Activation::kTanh>());
    case Activation::kRelu:
      return body(ActivationConstant<Activation::kRelu>());
    case Activation::kSilu:
      return body(ActivationConstant<Activation::kSilu>());
    case Activation::kQuickGelu:
      return body(ActivationConstant<Activation::kQuickGelu>());
    case Activation::kSigmoid:
      return body(ActivationConstant<Activation::kSigmoid>());
  }
}

}  // namespace megatron::ops::cuda

#endif  // MEGATRON_OPS_CUDA_ACTIVATION_CUH_
