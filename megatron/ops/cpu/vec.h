// Vec: a register of floats, for kernels that are compiled once per instruction set.
//
// Only sources of cpu_kernel_library include it. All of it is inlined and lies in namespace
// MEGATRON_ISA, so that the objects of two instruction sets share no symbol. Such a source must not
// call inline functions or templates from elsewhere, including the standard library: the linker
// keeps one copy of them, which may use instructions that a processor lacks.
//
// *Lanes* are the floats of a Vec: 16 with AVX-512, 8 with AVX2. Memory holds float, BFloat16 or
// Float16 and needs no alignment. The Partial forms access only the first n lanes, 0 <= n <=
// kLanes, and read the others as zero. Stores round to nearest even and keep NaN.
//
// Reductions add in one fixed tree. Exp, Log and Erf are within 2 units in the last place
// (vec_test.cc); they handle infinities, and map NaN to NaN.
#ifndef MEGATRON_OPS_CPU_VEC_H_
#define MEGATRON_OPS_CPU_VEC_H_

// GCC 12 takes the "undefined" operands inside its own intrinsics for uninitialized variables.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#else
#include <immintrin.h>
#endif

#include <cstdint>

#include "megatron/tensor/dtype.h"

#define MEGATRON_INLINE_MEMBER inline __attribute__((always_inline))
#define MEGATRON_INLINE static MEGATRON_INLINE_MEMBER

namespace megatron::ops::MEGATRON_ISA {

#if defined(MEGATRON_ISA_AVX512)

constexpr int kLanes = 16;

struct Vec {
  __m512 v;
};
struct Mask {
  __mmask16 m;
};
// Raw words of the 16-bit formats, kLanes of them.
using HalfWords = __m256i;

MEGATRON_INLINE Vec Set(float x) { return {_mm512_set1_ps(x)}; }
MEGATRON_INLINE Mask FirstLanes(int n) { return {static_cast<__mmask16>((1u << n) - 1)}; }

MEGATRON_INLINE Vec Load(const float* p) { return {_mm512_loadu_ps(p)}; }
MEGATRON_INLINE Vec LoadPartial(const float* p, int n) {
  return {_mm512_maskz_loadu_ps(FirstLanes(n).m, p)};
}
MEGATRON_INLINE void Store(float* p, Vec a) { _mm512_storeu_ps(p, a.v); }
MEGATRON_INLINE void StorePartial(float* p, Vec a, int n) {
  _mm512_mask_storeu_ps(p, FirstLanes(n).m, a.v);
}

MEGATRON_INLINE HalfWords LoadWords(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
MEGATRON_INLINE HalfWords LoadWordsPartial(const void* p, int n) {
  return _mm256_maskz_loadu_epi16(FirstLanes(n).m, p);
}
MEGATRON_INLINE void StoreWords(void* p, HalfWords words) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), words);
}
MEGATRON_INLINE void StoreWordsPartial(void* p, HalfWords words, int n) {
  _mm256_mask_storeu_epi16(p, FirstLanes(n).m, words);
}
MEGATRON_INLINE Vec WidenBFloat16(HalfWords words) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16))};
}
MEGATRON_INLINE Vec WidenFloat16(HalfWords words) { return {_mm512_cvtph_ps(words)}; }
MEGATRON_INLINE HalfWords NarrowFloat16(Vec a) {
  return _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
MEGATRON_INLINE HalfWords NarrowBFloat16(Vec a) {
  const __m512i bits = _mm512_castps_si512(a.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  rounded = _mm512_mask_or_epi32(rounded, _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q), bits,
                                 _mm512_set1_epi32(0x400000));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
}

MEGATRON_INLINE Vec Fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
MEGATRON_INLINE Vec NegatedFma(Vec a, Vec b, Vec c) { return {_mm512_fnmadd_ps(a.v, b.v, c.v)}; }
// Returns the second operand if either is NaN.
MEGATRON_INLINE Vec Min(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }
MEGATRON_INLINE Vec Max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
MEGATRON_INLINE Vec Sqrt(Vec a) { return {_mm512_sqrt_ps(a.v)}; }
MEGATRON_INLINE Vec Abs(Vec a) { return {_mm512_abs_ps(a.v)}; }
MEGATRON_INLINE Vec CopySign(Vec magnitude, Vec sign) {
  return {_mm512_castsi512_ps(_mm512_ternarylogic_epi32(_mm512_set1_epi32(INT32_MIN),
                                                        _mm512_castps_si512(sign.v),
                                                        _mm512_castps_si512(magnitude.v), 0xca))};
}
MEGATRON_INLINE Vec RoundToInteger(Vec a) {
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}

MEGATRON_INLINE Mask Less(Vec a, Vec b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
MEGATRON_INLINE Vec Select(Mask mask, Vec yes, Vec no) {
  return {_mm512_mask_blend_ps(mask.m, no.v, yes.v)};
}

// a * 2^n for an integer n, with gradual underflow.
MEGATRON_INLINE Vec ScaleByPowerOfTwo(Vec a, Vec n) { return {_mm512_scalef_ps(a.v, n.v)}; }
// a = mantissa * 2^exponent, mantissa in [sqrt(1/2), sqrt(2)); a is positive and normal.
MEGATRON_INLINE Vec SplitExponent(Vec a, Vec* exponent) {
  const __m512i offset = _mm512_set1_epi32(0x3f3504f3);
  const __m512i bits = _mm512_sub_epi32(_mm512_castps_si512(a.v), offset);
  exponent->v = _mm512_cvtepi32_ps(_mm512_srai_epi32(bits, 23));
  return {_mm512_castsi512_ps(
      _mm512_add_epi32(_mm512_and_si512(bits, _mm512_set1_epi32(0x7fffff)), offset))};
}

// Folds the two halves of eight lanes.
MEGATRON_INLINE __m256 FoldSum(Vec a) {
  return _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
}
MEGATRON_INLINE __m256 FoldMax(Vec a) {
  return _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
}

#else  // AVX2

constexpr int kLanes = 8;

struct Vec {
  __m256 v;
};
struct Mask {
  __m256 m;
};
using HalfWords = __m128i;

MEGATRON_INLINE Vec Set(float x) { return {_mm256_set1_ps(x)}; }
MEGATRON_INLINE __m256i FirstLaneBits(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
MEGATRON_INLINE Mask FirstLanes(int n) { return {_mm256_castsi256_ps(FirstLaneBits(n))}; }

MEGATRON_INLINE Vec Load(const float* p) { return {_mm256_loadu_ps(p)}; }
MEGATRON_INLINE Vec LoadPartial(const float* p, int n) {
  return {_mm256_maskload_ps(p, FirstLaneBits(n))};
}
MEGATRON_INLINE void Store(float* p, Vec a) { _mm256_storeu_ps(p, a.v); }
MEGATRON_INLINE void StorePartial(float* p, Vec a, int n) {
  _mm256_maskstore_ps(p, FirstLaneBits(n), a.v);
}

MEGATRON_INLINE HalfWords LoadWords(const void* p) {
  return _mm_loadu_si128(static_cast<const __m128i*>(p));
}
// AVX2 has no masked moves of 16-bit words; these go through memory.
MEGATRON_INLINE HalfWords LoadWordsPartial(const void* p, int n) {
  alignas(16) uint16_t words[kLanes] = {};
  for (int i = 0; i < n; ++i) words[i] = static_cast<const uint16_t*>(p)[i];
  return LoadWords(words);
}
MEGATRON_INLINE void StoreWords(void* p, HalfWords words) {
  _mm_storeu_si128(static_cast<__m128i*>(p), words);
}
MEGATRON_INLINE void StoreWordsPartial(void* p, HalfWords words, int n) {
  alignas(16) uint16_t copy[kLanes];
  StoreWords(copy, words);
  for (int i = 0; i < n; ++i) static_cast<uint16_t*>(p)[i] = copy[i];
}
MEGATRON_INLINE Vec WidenBFloat16(HalfWords words) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(words), 16))};
}
MEGATRON_INLINE Vec WidenFloat16(HalfWords words) { return {_mm256_cvtph_ps(words)}; }
MEGATRON_INLINE HalfWords NarrowFloat16(Vec a) {
  return _mm256_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
MEGATRON_INLINE HalfWords NarrowBFloat16(Vec a) {
  const __m256i bits = _mm256_castps_si256(a.v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256i chosen =
      _mm256_castps_si256(_mm256_blendv_ps(_mm256_castsi256_ps(rounded), _mm256_castsi256_ps(quiet),
                                           _mm256_cmp_ps(a.v, a.v, _CMP_UNORD_Q)));
  const __m256i high = _mm256_srli_epi32(chosen, 16);
  return _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
}

MEGATRON_INLINE Vec Fma(Vec a, Vec b, Vec c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
MEGATRON_INLINE Vec NegatedFma(Vec a, Vec b, Vec c) { return {_mm256_fnmadd_ps(a.v, b.v, c.v)}; }
MEGATRON_INLINE Vec Min(Vec a, Vec b) { return {_mm256_min_ps(a.v, b.v)}; }
MEGATRON_INLINE Vec Max(Vec a, Vec b) { return {_mm256_max_ps(a.v, b.v)}; }
MEGATRON_INLINE Vec Sqrt(Vec a) { return {_mm256_sqrt_ps(a.v)}; }
MEGATRON_INLINE Vec Abs(Vec a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.v)}; }
MEGATRON_INLINE Vec CopySign(Vec magnitude, Vec sign) {
  const __m256 bit = _mm256_set1_ps(-0.0f);
  return {_mm256_or_ps(_mm256_andnot_ps(bit, magnitude.v), _mm256_and_ps(bit, sign.v))};
}
MEGATRON_INLINE Vec RoundToInteger(Vec a) {
  return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}

MEGATRON_INLINE Mask Less(Vec a, Vec b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ)}; }
MEGATRON_INLINE Vec Select(Mask mask, Vec yes, Vec no) {
  return {_mm256_blendv_ps(no.v, yes.v, mask.m)};
}

MEGATRON_INLINE __m256 PowerOfTwo(__m256i n) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}
// Multiplies in two steps, since 2^n itself may not be a normal number.
MEGATRON_INLINE Vec ScaleByPowerOfTwo(Vec a, Vec n) {
  const __m256i whole = _mm256_cvtps_epi32(n.v);
  const __m256i half = _mm256_srai_epi32(whole, 1);
  return {_mm256_mul_ps(_mm256_mul_ps(a.v, PowerOfTwo(half)),
                        PowerOfTwo(_mm256_sub_epi32(whole, half)))};
}
MEGATRON_INLINE Vec SplitExponent(Vec a, Vec* exponent) {
  const __m256i offset = _mm256_set1_epi32(0x3f3504f3);
  const __m256i bits = _mm256_sub_epi32(_mm256_castps_si256(a.v), offset);
  exponent->v = _mm256_cvtepi32_ps(_mm256_srai_epi32(bits, 23));
  return {_mm256_castsi256_ps(
      _mm256_add_epi32(_mm256_and_si256(bits, _mm256_set1_epi32(0x7fffff)), offset))};
}

MEGATRON_INLINE __m256 FoldSum(Vec a) { return a.v; }
MEGATRON_INLINE __m256 FoldMax(Vec a) { return a.v; }

#endif

MEGATRON_INLINE Vec operator+(Vec a, Vec b) { return {a.v + b.v}; }
MEGATRON_INLINE Vec operator-(Vec a, Vec b) { return {a.v - b.v}; }
MEGATRON_INLINE Vec operator*(Vec a, Vec b) { return {a.v * b.v}; }
MEGATRON_INLINE Vec operator/(Vec a, Vec b) { return {a.v / b.v}; }
MEGATRON_INLINE Vec Zero() { return Set(0.0f); }

MEGATRON_INLINE Vec Load(const BFloat16* p) { return WidenBFloat16(LoadWords(p)); }
MEGATRON_INLINE Vec Load(const Float16* p) { return WidenFloat16(LoadWords(p)); }
MEGATRON_INLINE Vec LoadPartial(const BFloat16* p, int n) {
  return WidenBFloat16(LoadWordsPartial(p, n));
}
MEGATRON_INLINE Vec LoadPartial(const Float16* p, int n) {
  return WidenFloat16(LoadWordsPartial(p, n));
}
MEGATRON_INLINE void Store(BFloat16* p, Vec a) { StoreWords(p, NarrowBFloat16(a)); }
MEGATRON_INLINE void Store(Float16* p, Vec a) { StoreWords(p, NarrowFloat16(a)); }
MEGATRON_INLINE void StorePartial(BFloat16* p, Vec a, int n) {
  StoreWordsPartial(p, NarrowBFloat16(a), n);
}
MEGATRON_INLINE void StorePartial(Float16* p, Vec a, int n) {
  StoreWordsPartial(p, NarrowFloat16(a), n);
}

// The result of storing to T and loading again.
MEGATRON_INLINE Vec RoundTo(const float*, Vec a) { return a; }
MEGATRON_INLINE Vec RoundTo(const BFloat16*, Vec a) { return WidenBFloat16(NarrowBFloat16(a)); }
MEGATRON_INLINE Vec RoundTo(const Float16*, Vec a) { return WidenFloat16(NarrowFloat16(a)); }

MEGATRON_INLINE float Sum(Vec a) {
  const __m256 eight = FoldSum(a);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
// The maximum of the lanes, none of which is NaN.
MEGATRON_INLINE float MaxOf(Vec a) {
  const __m256 eight = FoldMax(a);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

// c[0] + c[1] x + ... : the coefficients from the highest power down.
template <int kCount>
MEGATRON_INLINE Vec Polynomial(const float (&highest_first)[kCount], Vec x) {
  Vec sum = Set(highest_first[0]);
#pragma GCC unroll 12
  for (int i = 1; i < kCount; ++i) sum = Fma(sum, x, Set(highest_first[i]));
  return sum;
}

// The polynomials below are minimax fits (Chebyshev interpolation in 40 digits, rounded to float).

// exp(x) = 2^n exp(r), |r| <= ln(2) / 2.
MEGATRON_INLINE Vec Exp(Vec x) {
  // Beyond these bounds the result is 0 or infinity. NaN is kept, as the second operand.
  x = Min(Set(89.0f), Max(Set(-104.0f), x));
  const Vec n = RoundToInteger(x * Set(1.44269504f));
  const Vec r = NegatedFma(n, Set(-2.12194440e-4f), NegatedFma(n, Set(0.693359375f), x));
  constexpr float kSeries[] = {0.00139262508315f, 0.00836323288368f, 0.041666554213f,
                               0.166665766661f, 0.5f};
  const Vec tail = Polynomial(kSeries, r);
  return ScaleByPowerOfTwo(Set(1.0f) + Fma(tail * r, r, r), n);
}

// ln(x) for normal x > 0; -infinity at 0, infinity at infinity, NaN below 0.
MEGATRON_INLINE Vec Log(Vec x) {
  Vec exponent;
  const Vec f = SplitExponent(x, &exponent) - Set(1.0f);
  constexpr float kSeries[] = {-0.0790274377239f, 0.126223198492f,  -0.129981837637f,
                               0.142144959239f,   -0.166412814631f, 0.200010450942f,
                               -0.250003064226f,  0.333333307282f};
  const Vec f2 = f * f;
  const Vec tail = Fma(f2 * f, Polynomial(kSeries, f), exponent * Set(-2.12194440e-4f));
  const Vec log = Fma(exponent, Set(0.693359375f), Fma(f2, Set(-0.5f), tail) + f);
  const Vec infinity = Set(__builtin_inff());
  const Vec special = Select(Less(x, Zero()), Set(__builtin_nanf("")), x - infinity);
  const Vec low = Select(Less(Zero(), x), log, special);
  return Select(Less(x, infinity), low, x);
}

// erf(x) = x + x p(x^2) near zero, 1 - exp(|x| q(|x|)) with the sign of x elsewhere.
MEGATRON_INLINE Vec Erf(Vec x) {
  constexpr float kNear[] = {-0.000594276800726f, 0.00498408774863f, -0.0267607227601f,
                             0.112816647377f,     -0.376124806582f,  0.128379147894f};
  constexpr float kFar[] = {1.01184519029e-6f,  -3.37652254882e-5f, 0.000494089608484f,
                            -0.00428439239059f, 0.0250934345975f,   -0.107792231554f,
                            -0.634194741923f,   -1.12888876736f};
  const Vec t = Abs(x);
  const Vec near = Fma(Polynomial(kNear, x * x), x, x);
  const Vec clamped = Min(Set(4.0f), t);
  const Vec far = Set(1.0f) - Exp(clamped * Polynomial(kFar, clamped));
  return Select(Less(t, Set(0.9354f)), near, CopySign(far, x));
}

}  // namespace megatron::ops::MEGATRON_ISA

#endif  // MEGATRON_OPS_CPU_VEC_H_
