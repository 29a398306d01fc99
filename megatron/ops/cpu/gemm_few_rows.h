// The product of few rows of A with columns of B that are contiguous along K. Each square of B is
// transposed in registers and multiplied by all rows at once, so B is read once and not packed. The
// sums are those of gemm_multiply.h, bit for bit.
//
// Only sources of gemm_kernels include it (see vec.h).
#ifndef MEGATRON_OPS_CPU_GEMM_FEW_ROWS_H_
#define MEGATRON_OPS_CPU_GEMM_FEW_ROWS_H_

#include "megatron/ops/cpu/gemm_multiply.h"
#include "megatron/ops/cpu/gemm_pack.h"

namespace megatron::ops::MEGATRON_ISA {

#if defined(MEGATRON_ISA_AMX)

// The most rows for which this is faster than packing: those of a matrix register.
constexpr int64_t kFewRows = 16;

// Returns the rows of A (long panels) in the form in which MultiplyFewRows takes them: transposed,
// [steps][kFewRows]. `room` has place for it.
static inline const float* PrepareFewRows(const float* a, int64_t rows, int64_t depth,
                                          float* room) {
  for (int64_t step = 0; step * kStepElements < depth; step += kLanes) {
    Vec square[kLanes];
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i)
      square[i] = i < rows ? Load(a + i * kLongStride + step) : Zero();
    Transpose(square);
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) Store(room + (step + i) * kFewRows, square[i]);
  }
  return room;
}

// Loads kLanes columns of B, of which `columns` are inside the matrix, into matrix register 4. They
// are the rows of the register as they stand.
MEGATRON_INLINE void LoadColumns(const BFloat16* b, int64_t column_stride, int64_t columns,
                                 int64_t depth) {
  if (columns >= kLanes && depth >= kStepElements * kLanes) {
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
      __builtin_prefetch(b + (i + kPrefetchedColumns) * column_stride);
    }
    _tile_loadd(4, b, column_stride * sizeof(BFloat16));
    return;
  }
  alignas(64) float padded[kLanes * kLanes];
  for (int i = 0; i < kLanes; ++i) {
    Store(padded + i * kLanes, i < columns ? LoadAlong(b + i * column_stride, depth) : Zero());
  }
  FinishStores();
  _tile_loadd(4, padded, kLanes * sizeof(float));
}

// The tile becomes the product of the rows with kPanelColumns columns of B, or has it added. What
// is computed is its transpose, for which nothing of B has to move.
static inline void MultiplyFewRows(const BFloat16* b, int64_t column_stride, int64_t columns,
                                   int64_t depth, const float* x, int64_t rows, bool add,
                                   float* tile) {
  FinishStores();
  for (int64_t n = 0; n < kPanelColumns; n += kLanes) {
    _tile_zero(0);
    for (int64_t k = 0; k < depth; k += kStepElements * kLanes) {
      LoadColumns(b + n * column_stride + k, column_stride, columns - n, depth - k);
      _tile_loadd(6, x + k / kStepElements * kFewRows, kFewRows * sizeof(float));
      _tile_dpbf16ps(0, 4, 6);
    }
    alignas(64) float product[kLanes * kLanes];
    _tile_stored(0, product, kLanes * sizeof(float));
    FinishStores();
    Vec square[kLanes];
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) square[i] = Load(product + i * kLanes);
    Transpose(square);
    for (int64_t m = 0; m < rows; ++m) {
      float* const out = tile + m * kPanelColumns + n;
      Store(out, add ? Load(out) + square[m] : square[m]);
    }
  }
}

#else

// The most rows for which this is faster than packing.
constexpr int64_t kFewRows = 16;

// Returns a step of all columns of a square.
#if defined(MEGATRON_ISA_BF16_PRODUCTS)
MEGATRON_INLINE Vec StepAcross(const Square<BFloat16>& square, int step) {
  return square.vec[step];
}
#else
template <typename T>
MEGATRON_INLINE Vec StepAcross(const Square<T>& square, int step) {
  return square.Across(step);
}
#endif

// The most rows that a square is multiplied by at once: sums of several rows are independent chains
// of multiply-adds.
constexpr int kRowsAtOnce = kLanes == 16 ? 8 : 4;

// sums[kRows][kLanes] += the steps of kRows rows of A from `step` on, times a square of B.
template <int kRows, typename T>
MEGATRON_INLINE void AddProducts(const float* const* rows, int64_t step, const Square<T>& square,
                                 float* sums) {
  Vec sum[kRows];
  const float* row[kRows];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
    sum[i] = Load(sums + i * kLanes);
    row[i] = rows[i] + step;
  }
#pragma GCC unroll 32
  for (int j = 0; j < kSquareSteps<T>; ++j) {
    const Vec across = StepAcross(square, j);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) sum[i] = MultiplyAdd(Set(row[i][j]), across, sum[i]);
  }
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) Store(sums + i * kLanes, sum[i]);
}

// Multiplies `rows` rows of A, in long panels, by kLanes columns of B, of which `columns` are
// inside the matrix. The tile (of the first row panel; others follow) becomes the product, or has
// it added.
template <typename T>
MEGATRON_INLINE void MultiplySquares(const T* b, int64_t column_stride, int64_t columns,
                                     int64_t depth, const float* a, int64_t rows, bool add,
                                     float* tile) {
  alignas(64) float sums[kFewRows * kLanes];
  const float* row[kFewRows];
  for (int64_t m = 0; m < rows; ++m) {
    Store(sums + m * kLanes, Zero());
    row[m] = a + m / kPanelRows * kPanelFloatsA + m % kPanelRows * kLongStride;
  }
  for (int64_t k = 0; k < depth; k += Square<T>::kElements) {
    Square<T> square;
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
      const T* const column = b + i * column_stride + k;
      __builtin_prefetch(column + kPrefetchedColumns * column_stride);
      if (i < columns) {
        square.SetRow(i, column, depth - k);
      } else {
        square.ClearRow(i);
      }
    }
    square.Turn();
    const int64_t step = k / kStepElements;
    int64_t m = 0;
    for (; m + kRowsAtOnce <= rows; m += kRowsAtOnce)
      AddProducts<kRowsAtOnce>(row + m, step, square, sums + m * kLanes);
    for (; m + 4 <= rows; m += 4) AddProducts<4>(row + m, step, square, sums + m * kLanes);
    for (; m < rows; ++m) AddProducts<1>(row + m, step, square, sums + m * kLanes);
  }
  for (int64_t m = 0; m < rows; ++m) {
    float* const out = tile + m / kPanelRows * kTileFloats + m % kPanelRows * kPanelColumns;
    const Vec sum = Load(sums + m * kLanes);
    Store(out, add ? Load(out) + sum : sum);
  }
}

// Returns the rows of A in the form in which MultiplyFewRows takes them.
static inline const float* PrepareFewRows(const float* a, int64_t, int64_t, float*) { return a; }

// The same for kPanelColumns columns.
template <typename T>
static inline void MultiplyFewRows(const T* b, int64_t column_stride, int64_t columns,
                                   int64_t depth, const float* a, int64_t rows, bool add,
                                   float* tile) {
  for (int64_t n = 0; n < kPanelColumns; n += kLanes) {
    MultiplySquares(b + n * column_stride, column_stride, columns - n, depth, a, rows, add,
                    tile + n);
  }
}

#endif

}  // namespace megatron::ops::MEGATRON_ISA

#endif  // MEGATRON_OPS_CPU_GEMM_FEW_ROWS_H_
