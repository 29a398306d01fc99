#include "megatron/ops/cpu/optimizer_kernels.h"

#include "megatron/ops/cpu/loops.h"

namespace megatron::ops::MEGATRON_ISA {
namespace {

template <typename Access>
MEGATRON_INLINE void StoreWeight(const OptimizerPointers& at, Access access, int64_t i, Vec w) {
  access.store(at.master + i, w);
  if (at.out == nullptr) return;
  switch (at.out_dtype) {
    case DType::kBFloat16:
      return access.store(static_cast<BFloat16*>(at.out) + i, w);
    case DType::kFloat16:
      return access.store(static_cast<Float16*>(at.out) + i, w);
    default:
      return access.store(static_cast<float*>(at.out) + i, w);
  }
}

// Computes AdamWElement in vectors.
void AdamW(const AdamWStep& step, const OptimizerPointers& at) {
  ForEachVec(at.count, [&](auto access, int64_t i) {
    const Vec g = access.load(at.grad + i) * Set(step.grad_scale);
    const Vec m = Fma(Set(step.beta1), access.load(at.m + i), Set(step.one_minus_beta1) * g);
    const Vec v = Fma(Set(step.beta2), access.load(at.v + i), Set(step.one_minus_beta2) * g * g);
    access.store(at.m + i, m);
    access.store(at.v + i, v);
    const Vec denominator = Fma(Sqrt(v), Set(step.inverse_sqrt_correction2), Set(step.epsilon));
    const Vec kept = access.load(at.master + i) * Set(step.keep);
    StoreWeight(at, access, i, NegatedFma(Set(step.step_size), m / denominator, kept));
  });
}

void Sgd(const SgdStep& step, const OptimizerPointers& at) {
  ForEachVec(at.count, [&](auto access, int64_t i) {
    const Vec w = access.load(at.master + i);
    Vec update = Fma(w, Set(step.decay), access.load(at.grad + i) * Set(step.grad_scale));
    if (at.m != nullptr) {
      update = Fma(Set(step.momentum), access.load(at.m + i), update);
      access.store(at.m + i, update);
    }
    StoreWeight(at, access, i, NegatedFma(Set(step.lr), update, w));
  });
}

MEGATRON_INLINE Vec Sign(Vec x) {
  return Select(Less(Zero(), x), Set(1.0f), Select(Less(x, Zero()), Set(-1.0f), Zero()));
}

void Lion(const LionStep& step, const OptimizerPointers& at) {
  ForEachVec(at.count, [&](auto access, int64_t i) {
    const Vec g = access.load(at.grad + i) * Set(step.grad_scale);
    const Vec m = access.load(at.m + i);
    const Vec c = Fma(Set(step.beta1), m, Set(step.one_minus_beta1) * g);
    access.store(at.m + i, Fma(Set(step.beta2), m, Set(step.one_minus_beta2) * g));
    const Vec kept = access.load(at.master + i) * Set(step.keep);
    StoreWeight(at, access, i, NegatedFma(Set(step.lr), Sign(c), kept));
  });
}

float SumOfSquares(float scale, const float* x, int64_t count, bool* finite) {
  constexpr int kChains = 4;
  Vec sums[kChains], poison = Zero();  // x - x is 0 or NaN
  for (Vec& sum : sums) sum = Zero();
  int64_t i = 0;
  for (; i + kChains * kLanes <= count; i += kChains * kLanes) {
#pragma GCC unroll 4
    for (int chain = 0; chain < kChains; ++chain) {
      const Vec value = Load(x + i + chain * kLanes);
      const Vec scaled = value * Set(scale);
      sums[chain] = Fma(scaled, scaled, sums[chain]);
      poison = poison + (value - value);
    }
  }
  ForEachVec(count - i, [&](auto access, int64_t j) {
    const Vec value = access.load(x + i + j);
    const Vec scaled = value * Set(scale);
    sums[0] = Fma(scaled, scaled, sums[0]);
    poison = poison + (value - value);
  });
  *finite = Sum(poison) == 0;
  return Sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

}  // namespace

const OptimizerKernels kOptimizerKernels = {AdamW, Sgd, Lion, SumOfSquares};

}  // namespace megatron::ops::MEGATRON_ISA
