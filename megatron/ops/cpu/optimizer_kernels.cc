#include "megatron/ops/cpu/optimizer_kernels.h"

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "megatron/ops/cpu/loops.h"
#include "megatron/ops/cpu/words_vec.h"

namespace megatron::ops::MEGATRON_ISA {

// The code of an element in an 8-bit float, which ForEachVec loads and stores as an fp32 number.
template <typename Format>
struct Moment8 {
  uint8_t code;
};

template <typename Format>
MEGATRON_INLINE Vec FromCodes(Words codes) {
  const Vec magnitude =
      VecOf(ShiftLeft<kBitsBehindMoment8>(AndWords(codes, SetWords(Format::kLargest)))) *
      Set(Format::kFromCode);
  if constexpr (Format::kSign == 0) return magnitude;
  return VecOf(OrWords(WordsOf(magnitude), ShiftLeft<24>(AndWords(codes, SetWords(0x80u)))));
}

// Computes ToMoment8 in vectors.
template <typename Format>
MEGATRON_INLINE Words ToCodes(Vec x, Words added) {
  const Words magnitude = WordsOf(Abs(x) * Set(Format::kToCode));
  const Words codes = MinWords(ShiftRight<kBitsBehindMoment8>(AddWords(magnitude, added)),
                               SetWords(Format::kLargest));
  if constexpr (Format::kSign == 0) return codes;
  const Words sign =
      WordsOf(Select(Less(x, Zero()), VecOf(SetWords(Format::kSign)), VecOf(SetWords(0))));
  return OrWords(codes, sign);
}

template <typename Format>
MEGATRON_INLINE Vec Load(const Moment8<Format>* p) {
  return FromCodes<Format>(LoadBytes(&p->code));
}
template <typename Format>
MEGATRON_INLINE Vec LoadPartial(const Moment8<Format>* p, int n) {
  return FromCodes<Format>(LoadBytesPartial(&p->code, n));
}
template <typename Format>
MEGATRON_INLINE void Store(Moment8<Format>* p, Vec a) {
  StoreBytes(&p->code, ToCodes<Format>(a, SetWords(0)));
}
template <typename Format>
MEGATRON_INLINE void StorePartial(Moment8<Format>* p, Vec a, int n) {
  StoreBytesPartial(&p->code, ToCodes<Format>(a, SetWords(0)), n);
}

// The remainder of a master weight. Loading and storing move it in the last bits of a lane, with
// which nothing is computed.
struct Remainder {
  uint16_t bits;
};

MEGATRON_INLINE Vec Load(const Remainder* p) { return VecOf(Widen(LoadWords(p))); }
MEGATRON_INLINE Vec LoadPartial(const Remainder* p, int n) {
  return VecOf(Widen(LoadWordsPartial(p, n)));
}
MEGATRON_INLINE void Store(Remainder* p, Vec a) { StoreWords(p, Narrow(WordsOf(a))); }
MEGATRON_INLINE void StorePartial(Remainder* p, Vec a, int n) {
  StoreWordsPartial(p, Narrow(WordsOf(a)), n);
}

namespace {

float* FloatMasters(const OptimizerPointers& at) { return static_cast<float*>(at.master); }

template <typename Access>
MEGATRON_INLINE void StoreWeight(const OptimizerPointers& at, Access access, int64_t i, Vec w) {
  access.store(FloatMasters(at) + i, w);
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

MEGATRON_INLINE Words MixWords(Words x) {
  x = MultiplyLow(Xor(x, ShiftRight<16>(x)), SetWords(0x7feb352du));
  x = MultiplyLow(Xor(x, ShiftRight<15>(x)), SetWords(0x846ca68bu));
  return Xor(x, ShiftRight<16>(x));
}

MEGATRON_INLINE Words RoundingWords(uint32_t key, Vec grad, Vec w) {
  return MixWords(Xor(MixWords(Xor(WordsOf(w), SetWords(key))), WordsOf(grad)));
}

MEGATRON_INLINE Vec RoundByChance(Vec x, Words random) {
  const Words bits = AndWords(AddWords(WordsOf(x), random), SetWords(0xffff0000u));
  return Select(Less(Abs(x), Set(HUGE_VALF)), VecOf(bits), x);
}

// Rounds the moment x as AdamWElement does. `random` has 16 bits.
MEGATRON_INLINE Vec RoundMoment(const float* /*type*/, Vec x, Words /*random*/) { return x; }
MEGATRON_INLINE Vec RoundMoment(const BFloat16* /*type*/, Vec x, Words random) {
  return RoundByChance(x, random);
}
template <typename Format>
MEGATRON_INLINE Vec RoundMoment(const Moment8<Format>* /*type*/, Vec x, Words random) {
  return FromCodes<Format>(ToCodes<Format>(x, OrWords(ShiftLeft<5>(random), SetWords(16))));
}

// Loads and stores masters, and weights where they are not the masters.
template <typename Access>
MEGATRON_INLINE Vec LoadMasters(const OptimizerPointers& /*at*/, const float* masters,
                                Access access, int64_t i) {
  return access.load(masters + i);
}
template <typename Access>
MEGATRON_INLINE void StoreMasters(const OptimizerPointers& at, float* /*masters*/, Access access,
                                  int64_t i, Vec w) {
  StoreWeight(at, access, i, w);
}
// MasterOf, RemainderOfMaster and WeightOfMaster in vectors.
template <typename Access>
MEGATRON_INLINE Vec LoadMasters(const OptimizerPointers& at, const Remainder* remainders,
                                Access access, int64_t i) {
  const Words weights = WordsOf(access.load(static_cast<const BFloat16*>(at.out) + i));
  const Words signs = Xor(WordsOf(access.load(remainders + i)), SetWords(0x8000u));
  return VecOf(AddWords(AddWords(weights, signs), SetWords(0xffff8000u)));
}
template <typename Access>
MEGATRON_INLINE void StoreMasters(const OptimizerPointers& at, Remainder* remainders, Access access,
                                  int64_t i, Vec w) {
  const Words weights = AddWords(WordsOf(w), SetWords(0x8000u));
  access.store(remainders + i, w);
  access.store(static_cast<BFloat16*>(at.out) + i, VecOf(AndWords(weights, SetWords(0xffff0000u))));
}

// Computes AdamWElement in vectors. M and V are the types of the moments, Master that in which
// masters are kept.
template <typename M, typename V, typename Master>
void UpdateAdamW(const AdamWStep& step, const OptimizerPointers& at) {
  constexpr bool kRounds = !std::is_same_v<M, float> || !std::is_same_v<V, float>;
  M* const ms = static_cast<M*>(at.m);
  V* const vs = static_cast<V*>(at.v);
  Master* const masters = static_cast<Master*>(at.master);
  ForEachVec(at.count, [&](auto access, int64_t i) {
    const Vec grad = access.load(at.grad + i), w = LoadMasters(at, masters, access, i);
    const Vec g = grad * Set(step.grad_scale);
    const Vec m = Fma(Set(step.beta1), access.load(ms + i), Set(step.one_minus_beta1) * g);
    const Vec v = Fma(Set(step.beta2), access.load(vs + i), Set(step.one_minus_beta2) * g * g);
    const Vec denominator = Fma(Sqrt(v), Set(step.inverse_sqrt_correction2), Set(step.epsilon));
    const Vec kept = w * Set(step.keep);
    Vec kept_m = m, kept_v = v;
    if constexpr (kRounds) {
      const Words random = RoundingWords(step.rounding_key, grad, w);
      kept_m = RoundMoment(ms, m, AndWords(random, SetWords(0xffffu)));
      kept_v = RoundMoment(vs, v, ShiftRight<16>(random));
    }
    access.store(ms + i, kept_m);
    access.store(vs + i, kept_v);
    StoreMasters(at, masters, access, i, NegatedFma(Set(step.step_size), m / denominator, kept));
  });
}

template <typename M, typename V>
void UpdateWithMoments(const AdamWStep& step, const OptimizerPointers& at) {
  if (at.master_dtype == DType::kUInt16) return UpdateAdamW<M, V, Remainder>(step, at);
  return UpdateAdamW<M, V, float>(step, at);
}

template <typename M>
void UpdateWithM(const AdamWStep& step, const OptimizerPointers& at) {
  switch (at.v_dtype) {
    case DType::kUInt8:
      return UpdateWithMoments<M, Moment8<SecondMoment8>>(step, at);
    case DType::kBFloat16:
      return UpdateWithMoments<M, BFloat16>(step, at);
    default:
      return UpdateWithMoments<M, float>(step, at);
  }
}

void AdamW(const AdamWStep& step, const OptimizerPointers& at) {
  switch (at.m_dtype) {
    case DType::kUInt8:
      return UpdateWithM<Moment8<FirstMoment8>>(step, at);
    case DType::kBFloat16:
      return UpdateWithM<BFloat16>(step, at);
    default:
      return UpdateWithM<float>(step, at);
  }
}

void Sgd(const SgdStep& step, const OptimizerPointers& at) {
  float* const buffer = static_cast<float*>(at.m);
  ForEachVec(at.count, [&](auto access, int64_t i) {
    const Vec w = access.load(FloatMasters(at) + i);
    Vec update = Fma(w, Set(step.decay), access.load(at.grad + i) * Set(step.grad_scale));
    if (buffer != nullptr) {
      update = Fma(Set(step.momentum), access.load(buffer + i), update);
      access.store(buffer + i, update);
    }
    StoreWeight(at, access, i, NegatedFma(Set(step.lr), update, w));
  });
}

MEGATRON_INLINE Vec Sign(Vec x) {
  return Select(Less(Zero(), x), Set(1.0f), Select(Less(x, Zero()), Set(-1.0f), Zero()));
}

void Lion(const LionStep& step, const OptimizerPointers& at) {
  float* const ms = static_cast<float*>(at.m);
  ForEachVec(at.count, [&](auto access, int64_t i) {
    const Vec g = access.load(at.grad + i) * Set(step.grad_scale);
    const Vec m = access.load(ms + i);
    const Vec c = Fma(Set(step.beta1), m, Set(step.one_minus_beta1) * g);
    access.store(ms + i, Fma(Set(step.beta2), m, Set(step.one_minus_beta2) * g));
    const Vec kept = access.load(FloatMasters(at) + i) * Set(step.keep);
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
