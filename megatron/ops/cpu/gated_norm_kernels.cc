#include "megatron/ops/cpu/gated_norm_kernels.h"

#include "megatron/ops/cpu/activation_vec.h"
#include "megatron/ops/cpu/loops.h"
#include "megatron/ops/cpu/vec.h"

namespace megatron::ops::MEGATRON_ISA {
namespace {

MEGATRON_INLINE Vec Silu(Vec x) { return Activate<Activation::kSilu>(x); }

// What is normalized at column c.
template <typename T, typename Access>
MEGATRON_INLINE Vec Normed(const GatedPart& part, Access access, const T* x, const T* z,
                           int64_t c) {
  const Vec value = access.load(x + c);
  return part.norm_before_gate ? value : value * Silu(access.load(z + c));
}

template <typename T>
float ReciprocalRms(const GatedPart& part, const T* x, const T* z) {
  Vec sum = Zero();
  ForEachVec(part.width, [&](auto access, int64_t c) {
    const Vec v = Normed(part, access, x, z, c);
    sum = Fma(v, v, sum);
  });
  return 1 / __builtin_sqrtf(Sum(sum) / static_cast<float>(part.width) + part.epsilon);
}

template <typename T>
void Forward(const T*, const GatedPart& part) {
  const T *const x = static_cast<const T*>(part.x), *const z = static_cast<const T*>(part.z),
                 *const gamma = static_cast<const T*>(part.gamma);
  T* const y = static_cast<T*>(part.y);
  const Vec rms = Set(ReciprocalRms(part, x, z));
  ForEachVec(part.width, [&](auto access, int64_t c) {
    const Vec normed = Normed(part, access, x, z, c) * rms * access.load(gamma + c);
    access.store(y + c, part.norm_before_gate ? normed * Silu(access.load(z + c)) : normed);
  });
}

template <typename T>
void Backward(const T*, const GatedPart& part) {
  const T *const x = static_cast<const T*>(part.x), *const z = static_cast<const T*>(part.z),
                 *const gamma = static_cast<const T*>(part.gamma),
                 *const dy = static_cast<const T*>(part.dy);
  T *const dx = static_cast<T*>(part.dx), *const dz = static_cast<T*>(part.dz);
  const float reciprocal = ReciprocalRms(part, x, z);
  const Vec rms = Set(reciprocal);
  // The gradient of what is normalized, times its value over the rms, on average.
  Vec sum = Zero();
  const auto behind_norm = [&](auto access, int64_t c) {
    const Vec gradient = access.load(dy + c);
    return part.norm_before_gate ? gradient * Silu(access.load(z + c)) : gradient;
  };
  ForEachVec(part.width, [&](auto access, int64_t c) {
    sum = Fma(behind_norm(access, c) * access.load(gamma + c), Normed(part, access, x, z, c) * rms,
              sum);
  });
  const Vec along = Set(Sum(sum) / static_cast<float>(part.width));
  ForEachVec(part.width, [&](auto access, int64_t c) {
    const Vec gate = access.load(z + c), gradient = access.load(dy + c), value = access.load(x + c);
    const Vec normalized = Normed(part, access, x, z, c) * rms, scale = access.load(gamma + c);
    const Vec behind = behind_norm(access, c);
    access.store(part.dgamma + c, Fma(behind, normalized, access.load(part.dgamma + c)));
    const Vec of_normed = rms * (behind * scale - normalized * along);
    const Vec slope = ActivationSlope<Activation::kSilu>(gate);
    if (part.norm_before_gate) {
      access.store(dx + c, of_normed);
      access.store(dz + c, gradient * normalized * scale * slope);
    } else {
      access.store(dx + c, of_normed * Silu(gate));
      access.store(dz + c, of_normed * value * slope);
    }
  });
}

}  // namespace

void GatedPartForward(const GatedPart& part) {
  WithType(part.dtype, [&](auto* type) { Forward(type, part); });
}

void GatedPartBackward(const GatedPart& part) {
  WithType(part.dtype, [&](auto* type) { Backward(type, part); });
}

}  // namespace megatron::ops::MEGATRON_ISA
