// Philox in vectors: the dropout masks of ops/dropout.h, many columns at a time.
//
// Only sources of cpu_kernel_library include it (see vec.h).
#ifndef MEGATRON_OPS_CPU_PHILOX_VEC_H_
#define MEGATRON_OPS_CPU_PHILOX_VEC_H_

#include "megatron/base/philox.h"
#include "megatron/ops/cpu/vec.h"
#include "megatron/ops/cpu/words_vec.h"

namespace megatron::ops::MEGATRON_ISA {

// The multiplier of an element: `scale` if its word is at least `threshold`, else 0.
struct DropoutRule {
  PhiloxKey key;
  uint32_t threshold;
  float scale;
};

#if defined(MEGATRON_ISA_AVX512)

// Low and high words of a * b, lane by lane.
MEGATRON_INLINE void Multiply(Words a, Words b, Words* low, Words* high) {
  const Words even = _mm512_mul_epu32(a, b);
  const Words odd = _mm512_mul_epu32(_mm512_srli_epi64(a, 32), b);
  *low = _mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32));
  *high = _mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd);
}
// Counters first, first + 1, ... in the order that puts their words in column order after the
// shuffles of PhiloxColumns, which stay inside quarters of a register.
MEGATRON_INLINE Words Counters(uint32_t first) {
  return _mm512_add_epi32(SetWords(first),
                          _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
}
MEGATRON_INLINE Words InterleaveLow32(Words a, Words b) { return _mm512_unpacklo_epi32(a, b); }
MEGATRON_INLINE Words InterleaveHigh32(Words a, Words b) { return _mm512_unpackhi_epi32(a, b); }
MEGATRON_INLINE Words InterleaveLow64(Words a, Words b) { return _mm512_unpacklo_epi64(a, b); }
MEGATRON_INLINE Words InterleaveHigh64(Words a, Words b) { return _mm512_unpackhi_epi64(a, b); }
MEGATRON_INLINE Vec KeepScale(Words words, const DropoutRule& rule) {
  const __mmask16 keep = _mm512_cmpge_epu32_mask(words, SetWords(rule.threshold));
  return {_mm512_maskz_mov_ps(keep, _mm512_set1_ps(rule.scale))};
}

#else  // AVX2

MEGATRON_INLINE void Multiply(Words a, Words b, Words* low, Words* high) {
  const Words even = _mm256_mul_epu32(a, b);
  const Words odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), b);
  *low = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
  *high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
}
MEGATRON_INLINE Words Counters(uint32_t first) {
  return _mm256_add_epi32(SetWords(first), _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7));
}
MEGATRON_INLINE Words InterleaveLow32(Words a, Words b) { return _mm256_unpacklo_epi32(a, b); }
MEGATRON_INLINE Words InterleaveHigh32(Words a, Words b) { return _mm256_unpackhi_epi32(a, b); }
MEGATRON_INLINE Words InterleaveLow64(Words a, Words b) { return _mm256_unpacklo_epi64(a, b); }
MEGATRON_INLINE Words InterleaveHigh64(Words a, Words b) { return _mm256_unpackhi_epi64(a, b); }
MEGATRON_INLINE Vec KeepScale(Words words, const DropoutRule& rule) {
  const Words threshold = SetWords(rule.threshold);
  const Words keep = _mm256_cmpeq_epi32(_mm256_max_epu32(words, threshold), words);
  return {_mm256_and_ps(_mm256_castsi256_ps(keep), _mm256_set1_ps(rule.scale))};
}

#endif

// The words of 4 kLanes columns of one row, starting at column 4 * first_block.
MEGATRON_INLINE void PhiloxColumns(PhiloxKey key, uint64_t sample, uint32_t position,
                                   uint32_t first_block, Words out[4]) {
  Words c0 = SetWords(static_cast<uint32_t>(sample));
  Words c1 = SetWords(static_cast<uint32_t>(sample >> 32));
  Words c2 = SetWords(position);
  Words c3 = Counters(first_block);
  const Words m0 = SetWords(0xD2511F53u), m1 = SetWords(0xCD9E8D57u);
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
    Words low0, high0, low1, high1;
    Multiply(c0, m0, &low0, &high0);
    Multiply(c2, m1, &low1, &high1);
    c0 = Xor(high1, c1, SetWords(key.lo + static_cast<uint32_t>(round) * 0x9E3779B9u));
    c2 = Xor(high0, c3, SetWords(key.hi + static_cast<uint32_t>(round) * 0xBB67AE85u));
    c1 = low1;
    c3 = low0;
  }
  const Words low01 = InterleaveLow32(c0, c1), high01 = InterleaveHigh32(c0, c1);
  const Words low23 = InterleaveLow32(c2, c3), high23 = InterleaveHigh32(c2, c3);
  out[0] = InterleaveLow64(low01, low23);
  out[1] = InterleaveHigh64(low01, low23);
  out[2] = InterleaveLow64(high01, high23);
  out[3] = InterleaveHigh64(high01, high23);
}

// Multipliers of columns [first_column, first_column + count) of the row of (sample, position).
static inline void DropoutScales(const DropoutRule& rule, uint64_t sample, uint32_t position,
                                 int64_t first_column, int64_t count, float* out) {
  constexpr int64_t kStep = 4 * kLanes;
  const int64_t end = first_column + count;
  for (int64_t column = first_column / 4 * 4; column < end; column += kStep) {
    Words words[4];
    PhiloxColumns(rule.key, sample, position, static_cast<uint32_t>(column / 4), words);
    if (column >= first_column && column + kStep <= end) {
      for (int i = 0; i < 4; ++i) {
        Store(out + (column - first_column) + i * kLanes, KeepScale(words[i], rule));
      }
      continue;
    }
    float edge[kStep];
    for (int i = 0; i < 4; ++i) Store(edge + i * kLanes, KeepScale(words[i], rule));
    const int64_t from = column < first_column ? first_column : column;
    const int64_t to = column + kStep < end ? column + kStep : end;
    for (int64_t c = from; c < to; ++c) out[c - first_column] = edge[c - column];
  }
}

}  // namespace megatron::ops::MEGATRON_ISA

#endif  // MEGATRON_OPS_CPU_PHILOX_VEC_H_
