// Packing of matrix operands into panels, in the order in which the inner kernel reads.
//
// Legend: M rows of A, N columns of B, K the summed dim. A *step* is what the inner kernel takes of
// K at once, in the bits of one float: an element widened to fp32 or, for products of bf16, a pair
// of elements with the first one in the low half. A panel is kPanelRows rows of A or kPanelColumns
// columns of B, all for one block of at most kBlockSteps of K. Operands end with zeros where K ends
// within a step. Only sources of gemm_kernels include it (see vec.h).
#ifndef MEGATRON_OPS_CPU_GEMM_PACK_H_
#define MEGATRON_OPS_CPU_GEMM_PACK_H_

#include "megatron/ops/cpu/square_vec.h"
#include "megatron/ops/cpu/vec.h"

namespace megatron::ops::MEGATRON_ISA {

constexpr int kBlockSteps = 384;
#if defined(MEGATRON_ISA_AMX)
constexpr int kPanelRows = 32;
#elif defined(MEGATRON_ISA_AVX512)
constexpr int kPanelRows = 14;
#else
constexpr int kPanelRows = 6;
#endif
constexpr int kPanelVecs = 2;
constexpr int kPanelColumns = kPanelVecs * kLanes;

// The inner kernel reads K in multiples of so many steps, of which those beyond K are zero.
#if defined(MEGATRON_ISA_AMX)
constexpr int kStepMultiple = kLanes;
#else
constexpr int kStepMultiple = 1;
#endif

// A panel of A has kPanelRows rows of kLongStride steps (*long*), or kBlockSteps rows of
// kShortStride steps of different rows of A (*short*): what needs no transposition, except that AMX
// wants long ones. Short rows are stored in whole vectors, each over the end of the one before it.
// The extra cache line keeps panels and rows in different cache sets.
constexpr int kLongStride = kBlockSteps + 16;
#if defined(MEGATRON_ISA_AVX512)
constexpr int kShortStride = kLanes;
constexpr int kPanelFloatsB = kBlockSteps * kPanelColumns;
#else
constexpr int kShortStride = kPanelRows;
constexpr int kPanelFloatsB = kBlockSteps * kPanelColumns + 16;
#endif
constexpr int kPanelFloatsA = (kPanelRows > kShortStride ? kPanelRows : kShortStride) * kLongStride;
static_assert(kBlockSteps % kLanes == 0, "");

// What is fetched ahead of what is packed.
constexpr int kPrefetchedRows = 8, kPrefetchedColumns = 16;
constexpr int kLineFloats = 16;  // a cache line

MEGATRON_INLINE int64_t Smaller(int64_t a, int64_t b) { return a < b ? a : b; }

#if defined(MEGATRON_ISA_BF16_PRODUCTS)

constexpr int kStepElements = 2;

// Returns kLanes steps of elements that are contiguous along K.
MEGATRON_INLINE Vec LoadAlong(const BFloat16* p, int64_t available) {
  return LoadPairsUpTo(p, available);
}

// Returns elements in the low halves of 32 bits.
MEGATRON_INLINE __m512i LoadWordsUpTo(const BFloat16* p, int64_t available) {
  return _mm512_cvtepu16_epi32(
      available >= kLanes ? LoadWords(p) : LoadWordsPartial(p, static_cast<int>(available)));
}

// Returns one step of each of up to kLanes rows or columns. `left` elements of K are left.
MEGATRON_INLINE Vec LoadAcross(const BFloat16* p, int64_t stride, int64_t available, int64_t left) {
  const __m512i first = LoadWordsUpTo(p, available);
  if (left == 1) return {_mm512_castsi512_ps(first)};
  const __m512i second = LoadWordsUpTo(p + stride, available);
  return {_mm512_castsi512_ps(_mm512_or_si512(first, _mm512_slli_epi32(second, 16)))};
}

#else

constexpr int kStepElements = 1;

template <typename T>
MEGATRON_INLINE Vec LoadAlong(const T* p, int64_t available) {
  return LoadUpTo(p, available);
}

template <typename T>
MEGATRON_INLINE Vec LoadAcross(const T* p, int64_t /*stride*/, int64_t available,
                               int64_t /*left*/) {
  return LoadUpTo(p, available);
}

#endif

// The steps of a Square of a matrix that is contiguous along K (square_vec.h).
template <typename T>
constexpr int kSquareSteps = Square<T>::kElements / kStepElements;

// Fetches the cache lines of `count` elements, which may lie beyond an operand's end.
template <typename T>
MEGATRON_INLINE void Prefetch(const T* p, int64_t count) {
  constexpr int64_t kLine = kLineFloats * sizeof(float) / sizeof(T);
  for (int64_t i = 0; i < count; i += kLine) __builtin_prefetch(p + i);
}

// Packs `rows` rows of A, each contiguous along K, into long panels. They end with zeros up to a
// multiple of kSquareSteps.
template <typename T>
static inline void PackRowsOfA(const T* a, int64_t row_stride, int64_t rows, int64_t depth,
                               float* panels) {
  for (int64_t i = 0; i < rows; ++i) {
    float* out = panels + i / kPanelRows * kPanelFloatsA + i % kPanelRows * kLongStride;
    int64_t step = 0;
    for (; step * kStepElements < depth; step += kLanes) {
      const int64_t k = step * kStepElements;
      __builtin_prefetch(a + (i + kPrefetchedRows) * row_stride + k);
      Store(out + step, LoadAlong(a + i * row_stride + k, depth - k));
    }
    for (; step % kSquareSteps<T> != 0; step += kLanes) Store(out + step, Zero());
  }
}

// Adds the elements of a step to the sums of rows.
template <typename T>
MEGATRON_INLINE Vec AddStep(Vec sums, const T* a, int64_t column_stride, int64_t available,
                            int64_t left) {
  sums = sums + LoadUpTo(a, available);
  if (kStepElements == 1 || left == 1) return sums;
  return sums + LoadUpTo(a + column_stride, available);
}

// Adds the sums of `rows` rows, in groups of kGroupRows, to row_sums.
template <int kGroupRows>
MEGATRON_INLINE void AddRowSums(const Vec* sums, int64_t rows, float* row_sums) {
  for (int64_t first = 0; first < rows; first += kGroupRows) {
    const int count = static_cast<int>(rows - first < kGroupRows ? rows - first : kGroupRows);
    StorePartial(row_sums + first, LoadPartial(row_sums + first, count) + sums[first / kGroupRows],
                 count);
  }
}

// Packs at most kMaxPanels panels of an A that is contiguous along M, and adds up the sums of rows
// if asked.
#if defined(MEGATRON_ISA_AMX)
template <int kMaxPanels, typename T>
static inline void PackColumnsOfA(const T* a, int64_t column_stride, int64_t rows, int64_t depth,
                                  float* panels, float* row_sums) {
  static_assert(kPanelRows % kLanes == 0, "");
  Vec sums[kMaxPanels * kPanelRows / kLanes];
  for (Vec& sum : sums) sum = Zero();
  for (int64_t k = 0; k < depth; k += kStepElements * kLanes) {
    for (int64_t m = 0; m < rows; m += kLanes) {
      Vec square[kLanes];
      for (int i = 0; i < kLanes; ++i) {
        const int64_t left = depth - k - i * kStepElements;
        const T* const step = a + (depth - left) * column_stride + m;
        square[i] = left > 0 ? LoadAcross(step, column_stride, rows - m, left) : Zero();
        if (row_sums != nullptr && left > 0) {
          sums[m / kLanes] = AddStep(sums[m / kLanes], step, column_stride, rows - m, left);
        }
      }
      Transpose(square);
      float* const out = panels + m / kPanelRows * kPanelFloatsA + m % kPanelRows * kLongStride +
                         k / kStepElements;
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) Store(out + i * kLongStride, square[i]);
    }
  }
  if (row_sums != nullptr) AddRowSums<kLanes>(sums, rows, row_sums);
}
#else
template <int kMaxPanels, typename T>
static inline void PackColumnsOfA(const T* a, int64_t column_stride, int64_t rows, int64_t depth,
                                  float* panels, float* row_sums) {
  static_assert(kPanelRows <= kLanes, "");
  const int64_t count = (rows + kPanelRows - 1) / kPanelRows;
  Vec sums[kMaxPanels];
  for (Vec& sum : sums) sum = Zero();
  for (int64_t k = 0; k < depth; k += kStepElements) {
    Prefetch(a + (k + kPrefetchedRows) * column_stride, rows);
    for (int64_t p = 0; p < count; ++p) {
      const int64_t first = p * kPanelRows;
      const T* const step = a + k * column_stride + first;
      const Vec column = LoadAcross(step, column_stride, rows - first, depth - k);
      if (row_sums != nullptr) {
        sums[p] = AddStep(sums[p], step, column_stride, rows - first, depth - k);
      }
      Store(panels + p * kPanelFloatsA + k / kStepElements * kShortStride, column);
    }
  }
  if (row_sums != nullptr) AddRowSums<kPanelRows>(sums, rows, row_sums);
}
#endif

// Packs `columns` columns of B, which is contiguous along N.
template <typename T>
static inline void PackRowsOfB(const T* b, int64_t row_stride, int64_t columns, int64_t depth,
                               float* panels) {
  for (int64_t k = 0; k < depth || k / kStepElements % kStepMultiple != 0; k += kStepElements) {
    Prefetch(b + (k + kPrefetchedRows) * row_stride, columns);
    for (int64_t n = 0; n < columns; n += kPanelColumns) {
      float* out = panels + n / kPanelColumns * kPanelFloatsB + k / kStepElements * kPanelColumns;
      for (int i = 0; i < kPanelVecs; ++i) {
        const int64_t available = k < depth ? columns - n - i * kLanes : 0;
        Store(out + i * kLanes, available <= 0 ? Zero()
                                               : LoadAcross(b + k * row_stride + n + i * kLanes,
                                                            row_stride, available, depth - k));
      }
    }
  }
}

// Packs kLanes columns of B, each contiguous along K, by kLanes steps.
template <typename T>
MEGATRON_INLINE void PackSquareOfB(const T* b, int64_t column_stride, int64_t columns,
                                   int64_t depth, float* out) {
  Vec square[kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) {
    const T* const column = b + i * column_stride;
    __builtin_prefetch(column + kPrefetchedColumns * column_stride);
    square[i] = i < columns ? LoadAlong(column, depth) : Zero();
  }
  Transpose(square);
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) Store(out + i * kPanelColumns, square[i]);
}

// Packs `columns` columns of B, each contiguous along K, in squares that fill cache lines on both
// sides. Writes up to kLanes - 1 steps past `depth`.
template <typename T>
static inline void PackColumnsOfB(const T* b, int64_t column_stride, int64_t columns, int64_t depth,
                                  float* panels) {
  constexpr int kSquareElements = kStepElements * kLanes;
  const int64_t padded = (columns + kPanelColumns - 1) / kPanelColumns * kPanelColumns;
  for (int64_t line = 0; line < padded; line += kLineFloats) {
    for (int64_t first = 0; first < depth; first += kStepElements * kLineFloats) {
      const int64_t end = Smaller(depth, first + kStepElements * kLineFloats);
      for (int64_t n = line; n < line + kLineFloats; n += kLanes) {
        for (int64_t k = first; k < end; k += kSquareElements) {
          PackSquareOfB(b + n * column_stride + k, column_stride, columns - n, depth - k,
                        panels + n / kPanelColumns * kPanelFloatsB + n % kPanelColumns +
                            k / kStepElements * kPanelColumns);
        }
      }
    }
  }
}

}  // namespace megatron::ops::MEGATRON_ISA

#endif  // MEGATRON_OPS_CPU_GEMM_PACK_H_
