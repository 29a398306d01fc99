// Squares of matrices that are read along one dim, and whose vectors are wanted along the other.
//
// Only sources of cpu_kernel_library include it (see vec.h).
#ifndef MEGATRON_OPS_CPU_SQUARE_VEC_H_
#define MEGATRON_OPS_CPU_SQUARE_VEC_H_

#include <cstdint>

#include "megatron/ops/cpu/vec.h"

namespace megatron::ops::MEGATRON_ISA {

// Returns kLanes elements, of which those from `available` on are read as zero.
template <typename T>
MEGATRON_INLINE Vec LoadUpTo(const T* p, int64_t available) {
  return available >= kLanes ? Load(p) : LoadPartial(p, static_cast<int>(available));
}

// *Pairs* of bf16 are the bits of a lane, with the first one in the low half.
#if defined(MEGATRON_ISA_AVX512)
MEGATRON_INLINE Vec LoadPairsUpTo(const BFloat16* p, int64_t available) {
  if (available >= 2 * kLanes) return {_mm512_castsi512_ps(_mm512_loadu_si512(p))};
  return {_mm512_castsi512_ps(_mm512_maskz_loadu_epi16((__mmask32{1} << available) - 1, p))};
}
MEGATRON_INLINE Vec FirstOfPairs(Vec pairs) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(pairs.v), 16))};
}
MEGATRON_INLINE Vec SecondOfPairs(Vec pairs) {
  const __m512i high = _mm512_set1_epi32(-0x10000);
  return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(pairs.v), high))};
}
#else
MEGATRON_INLINE Vec LoadPairsUpTo(const BFloat16* p, int64_t available) {
  if (available >= 2 * kLanes)
    return {_mm256_castsi256_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
  alignas(32) BFloat16 words[2 * kLanes] = {};
  for (int64_t i = 0; i < available; ++i) words[i] = p[i];
  return {_mm256_castsi256_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(words)))};
}
MEGATRON_INLINE Vec FirstOfPairs(Vec pairs) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(pairs.v), 16))};
}
MEGATRON_INLINE Vec SecondOfPairs(Vec pairs) {
  const __m256i high = _mm256_set1_epi32(-0x10000);
  return {_mm256_castsi256_ps(_mm256_and_si256(_mm256_castps_si256(pairs.v), high))};
}
#endif

// Transposes a square of kLanes x kLanes floats.
#if defined(MEGATRON_ISA_AVX512)
MEGATRON_INLINE void Transpose(Vec square[kLanes]) {
  __m512 pairs[16], quads[16], halves[16];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    pairs[2 * i] = _mm512_unpacklo_ps(square[2 * i].v, square[2 * i + 1].v);
    pairs[2 * i + 1] = _mm512_unpackhi_ps(square[2 * i].v, square[2 * i + 1].v);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {
      const __m512d low = _mm512_castps_pd(pairs[4 * i + j]);
      const __m512d high = _mm512_castps_pd(pairs[4 * i + 2 + j]);
      quads[4 * i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(low, high));
      quads[4 * i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low, high));
    }
  }
  // Quarter q of quads[4 g + c] is now column 4 q + c of rows 4 g ... 4 g + 3.
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
#pragma GCC unroll 2
    for (int g = 0; g < 2; ++g) {
      halves[8 * g + c] = _mm512_shuffle_f32x4(quads[8 * g + c], quads[8 * g + 4 + c], 0x88);
      halves[8 * g + 4 + c] = _mm512_shuffle_f32x4(quads[8 * g + c], quads[8 * g + 4 + c], 0xdd);
    }
  }
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    square[c].v = _mm512_shuffle_f32x4(halves[c], halves[8 + c], 0x88);
    square[8 + c].v = _mm512_shuffle_f32x4(halves[c], halves[8 + c], 0xdd);
    square[4 + c].v = _mm512_shuffle_f32x4(halves[4 + c], halves[12 + c], 0x88);
    square[12 + c].v = _mm512_shuffle_f32x4(halves[4 + c], halves[12 + c], 0xdd);
  }
}
#else
MEGATRON_INLINE void Transpose(Vec square[kLanes]) {
  __m256 pairs[8], quads[8];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    pairs[2 * i] = _mm256_unpacklo_ps(square[2 * i].v, square[2 * i + 1].v);
    pairs[2 * i + 1] = _mm256_unpackhi_ps(square[2 * i].v, square[2 * i + 1].v);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {
      const __m256d low = _mm256_castps_pd(pairs[4 * i + j]);
      const __m256d high = _mm256_castps_pd(pairs[4 * i + 2 + j]);
      quads[4 * i + 2 * j] = _mm256_castpd_ps(_mm256_unpacklo_pd(low, high));
      quads[4 * i + 2 * j + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(low, high));
    }
  }
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    square[c].v = _mm256_permute2f128_ps(quads[c], quads[4 + c], 0x20);
    square[4 + c].v = _mm256_permute2f128_ps(quads[c], quads[4 + c], 0x31);
  }
}
#endif

// kLanes rows of kElements elements each. After Turn(), Across(e) has element e of every row, in
// fp32. A row of bf16 is held in pairs, so that twice as many elements are transposed at once.
template <typename T>
struct Square {
  static constexpr int kElements = kLanes;
  Vec vec[kLanes];

  // `available` elements are at p; the others of the row are zero.
  MEGATRON_INLINE_MEMBER void SetRow(int i, const T* p, int64_t available) {
    vec[i] = LoadUpTo(p, available);
  }
  MEGATRON_INLINE_MEMBER void ClearRow(int i) { vec[i] = Zero(); }
  MEGATRON_INLINE_MEMBER void Turn() { Transpose(vec); }
  MEGATRON_INLINE_MEMBER Vec Across(int e) const { return vec[e]; }
};

template <>
struct Square<BFloat16> {
  static constexpr int kElements = 2 * kLanes;
  Vec vec[kLanes];

  MEGATRON_INLINE_MEMBER void SetRow(int i, const BFloat16* p, int64_t available) {
    vec[i] = LoadPairsUpTo(p, available);
  }
  MEGATRON_INLINE_MEMBER void ClearRow(int i) { vec[i] = Zero(); }
  MEGATRON_INLINE_MEMBER void Turn() { Transpose(vec); }
  MEGATRON_INLINE_MEMBER Vec Across(int e) const {
    return e % 2 == 0 ? FirstOfPairs(vec[e / 2]) : SecondOfPairs(vec[e / 2]);
  }
};

}  // namespace megatron::ops::MEGATRON_ISA

#endif  // MEGATRON_OPS_CPU_SQUARE_VEC_H_
