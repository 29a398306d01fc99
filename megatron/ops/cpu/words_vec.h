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
MEGATRON_INLINE Words WordsOf(Vec a) { return _mm512_castps_si512(a.v); }
MEGATRON_INLINE Vec VecOf(Words a) { return {_mm512_castsi512_ps(a)}; }

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
MEGATRON_INLINE Words WordsOf(Vec a) { return _mm256_castps_si256(a.v); }
MEGATRON_INLINE Vec VecOf(Words a) { return {_mm256_castsi256_ps(a)}; }

#endif

}  // namespace megatron::ops::MEGATRON_ISA

#endif  // MEGATRON_OPS_CPU_WORDS_VEC_H_
