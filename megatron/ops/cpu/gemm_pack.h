// Packing of matrix operands into panels: fp32, in the order in which the inner kernel reads.
//
// Legend: M rows of A, N columns of B, K the summed dim. A panel is kPanelRows rows of A or
// kPanelColumns columns of B, all for one block of at most kBlockK of K. Only gemm_kernels.cc
// includes it (see vec.h).
#ifndef MEGATRON_OPS_CPU_GEMM_PACK_H_
#define MEGATRON_OPS_CPU_GEMM_PACK_H_

#include "megatron/ops/cpu/vec.h"

namespace megatron::ops::MEGATRON_ISA {

constexpr int kBlockK = 384;
#if defined(MEGATRON_ISA_AVX512)
constexpr int kPanelRows = 14;
#else
constexpr int kPanelRows = 6;
#endif
constexpr int kPanelVecs = 2;
constexpr int kPanelColumns = kPanelVecs * kLanes;

// A panel of A is kPanelRows rows of kLongStride floats if K is contiguous in memory, else kBlockK
// rows of kLanes floats. The extra cache line keeps panels and rows in different cache sets.
constexpr int kLongStride = kBlockK + 16;
constexpr int kPanelFloatsA = kBlockK * 16 + 16;
constexpr int kPanelFloatsB = kBlockK * kPanelColumns;
static_assert(kPanelRows * kLongStride <= kPanelFloatsA && kPanelRows <= kLanes, "");

template <typename T>
MEGATRON_INLINE Vec LoadUpTo(const T* p, int64_t available) {
  return available >= kLanes ? Load(p) : LoadPartial(p, static_cast<int>(available));
}

// One row of A or column of B: `count` contiguous elements.
template <typename T>
static inline void Widen(const T* in, int64_t count, float* out) {
  for (int64_t i = 0; i < count; i += kLanes) Store(out + i, LoadUpTo(in + i, count - i));
}

// Packs `rows` rows of A, each contiguous along K.
template <typename T>
static inline void PackRowsOfA(const T* a, int64_t row_stride, int64_t rows, int64_t depth,
                               float* panels) {
  for (int64_t i = 0; i < rows; ++i) {
    float* panel = panels + i / kPanelRows * kPanelFloatsA;
    Widen(a + i * row_stride, depth, panel + i % kPanelRows * kLongStride);
  }
}

// Packs at most kMaxPanels panels of an A that is contiguous along M, and adds up the sums of rows
// if asked.
template <int kMaxPanels, typename T>
static inline void PackColumnsOfA(const T* a, int64_t column_stride, int64_t rows, int64_t depth,
                                  float* panels, float* row_sums) {
  const int64_t count = (rows + kPanelRows - 1) / kPanelRows;
  Vec sums[kMaxPanels];
  for (Vec& sum : sums) sum = Zero();
  for (int64_t k = 0; k < depth; ++k) {
    for (int64_t p = 0; p < count; ++p) {
      const int64_t first = p * kPanelRows;
      const Vec column = LoadUpTo(a + k * column_stride + first, rows - first);
      Store(panels + p * kPanelFloatsA + k * kLanes, column);
      sums[p] = sums[p] + column;
    }
  }
  if (row_sums == nullptr) return;
  for (int64_t p = 0; p < count; ++p) {
    const int64_t first = p * kPanelRows;
    const int in_panel = static_cast<int>(rows - first < kPanelRows ? rows - first : kPanelRows);
    StorePartial(row_sums + first, LoadPartial(row_sums + first, in_panel) + sums[p], in_panel);
  }
}

// Packs `columns` columns of B, which is contiguous along N.
template <typename T>
static inline void PackRowsOfB(const T* b, int64_t row_stride, int64_t columns, int64_t depth,
                               float* panels) {
  for (int64_t k = 0; k < depth; ++k) {
    for (int64_t n = 0; n < columns; n += kPanelColumns) {
      float* out = panels + n / kPanelColumns * kPanelFloatsB + k * kPanelColumns;
      for (int i = 0; i < kPanelVecs; ++i) {
        const int64_t left = columns - n - i * kLanes;
        Store(out + i * kLanes,
              left <= 0 ? Zero() : LoadUpTo(b + k * row_stride + n + i * kLanes, left));
      }
    }
  }
}

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

// Packs `columns` columns of B, each contiguous along K. Writes up to kLanes - 1 rows past `depth`.
template <typename T>
static inline void PackColumnsOfB(const T* b, int64_t column_stride, int64_t columns, int64_t depth,
                                  float* panels) {
  static_assert(kBlockK % kLanes == 0, "");
  const int64_t padded = (columns + kPanelColumns - 1) / kPanelColumns * kPanelColumns;
  for (int64_t n = 0; n < padded; n += kLanes) {
    float* out = panels + n / kPanelColumns * kPanelFloatsB + n % kPanelColumns;
    for (int64_t k = 0; k < depth; k += kLanes) {
      Vec square[kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) {
        square[i] = n + i < columns ? LoadUpTo(b + (n + i) * column_stride + k, depth - k) : Zero();
      }
      Transpose(square);
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) Store(out + (k + i) * kPanelColumns, square[i]);
    }
  }
}

}  // namespace megatron::ops::MEGATRON_ISA

#endif  // MEGATRON_OPS_CPU_GEMM_PACK_H_
