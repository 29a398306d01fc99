// Vectors of 32-bit words, one for each lane of a Vec.
//
// Only sources of cpu_kernel_library include it (see vec.h).
#ifndef MEGATRON_OPS_CPU_WORDS_VEC_H_
#define MEGATRON_OPS_CPU_WORDS_VEC_H_

#include <cstdint>

#include "megatron/ops/cpu/vec.h"

namespace megatron::ops::MEGATRON_ISA {

#if defined(MEGATRON_ISA_AVX512)

using Words = __m512i;

MEGATRON_INLINE Words SetWords(uint32_t x) { return _mm512_set1_epi32(static_cast<int>(x)); }
MEGATRON_INLINE Words AddWords(Words a, Words b) { return _mm512_add_epi32(a, b); }
MEGATRON_INLINE Words AndWords(Words a, Words b) { return _mm512_and_si512(a, b); }
MEGATRON_INLINE Words Xor(Words a, Words b) { return _mm512_xor_si512(a, b); }
MEGATRON_INLINE Words Xor(Words a, Words b, Words c) {
  return _mm512_ternarylogic_epi32(a, b, c, 0x96);
}
MEGATRON_INLINE Words MultiplyLow(Words a, Words b) { return _mm512_mullo_epi32(a, b); }
template <int kBits>
MEGATRON_INLINE Words ShiftRight(Words a) {
  return _mm512_srli_epi32(a, kBits);
}
template <int kBits>
MEGATRON_INLINE Words ShiftLeft(Words a) {
  return _mm512_slli_epi32(a, kBits);
}
MEGATRON_INLINE Words OrWords(Words a, Words b) { return _mm512_or_si512(a, b); }
// The smaller of two unsigned words.
MEGATRON_INLINE Words MinWords(Words a, Words b) { return _mm512_min_epu32(a, b); }
MEGATRON_INLINE Words WordsOf(Vec a) { return _mm512_castps_si512(a.v); }
MEGATRON_INLINE Vec VecOf(Words a) { return {_mm512_castsi512_ps(a)}; }
// Loads bytes, one for each word, and stores the last byte of each word.
MEGATRON_INLINE Words LoadBytes(const uint8_t* p) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
MEGATRON_INLINE Words LoadBytesPartial(const uint8_t* p, int n) {
  return _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(FirstLanes(n).m, p));
}
MEGATRON_INLINE void StoreBytes(uint8_t* p, Words a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a));
}
MEGATRON_INLINE void StoreBytesPartial(uint8_t* p, Words a, int n) {
  _mm_mask_storeu_epi8(p, FirstLanes(n).m, _mm512_cvtepi32_epi8(a));
}

// 16-bit words as those of 32 bits, and the last 16 bits of each word.
MEGATRON_INLINE Words Widen(HalfWords words) { return _mm512_cvtepu16_epi32(words); }
MEGATRON_INLINE HalfWords Narrow(Words a) { return _mm512_cvtepi32_epi16(a); }

#else  // AVX2

using Words = __m256i;

MEGATRON_INLINE Words SetWords(uint32_t x) { return _mm256_set1_epi32(static_cast<int>(x)); }
MEGATRON_INLINE Words AddWords(Words a, Words b) { return _mm256_add_epi32(a, b); }
MEGATRON_INLINE Words AndWords(Words a, Words b) { return _mm256_and_si256(a, b); }
MEGATRON_INLINE Words Xor(Words a, Words b) { return _mm256_xor_si256(a, b); }
MEGATRON_INLINE Words Xor(Words a, Words b, Words c) { return Xor(Xor(a, b), c); }
MEGATRON_INLINE Words MultiplyLow(Words a, Words b) { return _mm256_mullo_epi32(a, b); }
template <int kBits>
MEGATRON_INLINE Words ShiftRight(Words a) {
  return _mm256_srli_epi32(a, kBits);
}
template <int kBits>
MEGATRON_INLINE Words ShiftLeft(Words a) {
  return _mm256_slli_epi32(a, kBits);
}
MEGATRON_INLINE Words OrWords(Words a, Words b) { return _mm256_or_si256(a, b); }
// The smaller of two unsigned words.
MEGATRON_INLINE Words MinWords(Words a, Words b) { return _mm256_min_epu32(a, b); }
MEGATRON_INLINE Words WordsOf(Vec a) { return _mm256_castps_si256(a.v); }
MEGATRON_INLINE Vec VecOf(Words a) { return {_mm256_castsi256_ps(a)}; }
// Loads bytes, one for each word, and stores the last byte of each word.
MEGATRON_INLINE Words LoadBytes(const uint8_t* p) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
MEGATRON_INLINE void StoreBytes(uint8_t* p, Words a) {
  const __m256i last = _mm256_and_si256(a, _mm256_set1_epi32(0xff));
  const __m128i halves =
      _mm_packus_epi32(_mm256_castsi256_si128(last), _mm256_extracti128_si256(last, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packus_epi16(halves, halves));
}
// 16-bit words as those of 32 bits, and the last 16 bits of each word.
MEGATRON_INLINE Words Widen(HalfWords words) { return _mm256_cvtepu16_epi32(words); }
MEGATRON_INLINE HalfWords Narrow(Words a) {
  const __m256i last = _mm256_and_si256(a, _mm256_set1_epi32(0xffff));
  return _mm_packus_epi32(_mm256_castsi256_si128(last), _mm256_extracti128_si256(last, 1));
}
// These go through memory, as those of 16-bit words do.
MEGATRON_INLINE Words LoadBytesPartial(const uint8_t* p, int n) {
  uint8_t bytes[kLanes] = {};
  for (int i = 0; i < n; ++i) bytes[i] = p[i];
  return LoadBytes(bytes);
}
MEGATRON_INLINE void StoreBytesPartial(uint8_t* p, Words a, int n) {
  uint8_t bytes[kLanes];
  StoreBytes(bytes, a);
  for (int i = 0; i < n; ++i) p[i] = bytes[i];
}

#endif

}  // namespace megatron::ops::MEGATRON_ISA

#endif  // MEGATRON_OPS_CPU_WORDS_VEC_H_
