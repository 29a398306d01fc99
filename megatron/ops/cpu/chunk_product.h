// Products of the packed matrices of chunks, and the fetching of rows that are needed next.
//
// Rows of matrices are multiples of kChunkPadding, columns of kLanes. The sums of a product's
// element have the order of its depth.
//
// Only sources of cpu_kernel_library include it (see vec.h).
#ifndef MEGATRON_OPS_CPU_CHUNK_PRODUCT_H_
#define MEGATRON_OPS_CPU_CHUNK_PRODUCT_H_

#include <cstdint>

#include "megatron/ops/cpu/attention_tile.h"
#include "megatron/ops/cpu/vec.h"

namespace megatron::ops::MEGATRON_ISA {

// Fetches rows of tensors into the caches while products are computed. A processor fetches memory
// that is read in order by itself, but the rows of a head lie far apart.
class Ahead {
 public:
  // Adds rows to what is fetched. There is room for a few tensors; the others are not fetched.
  void Add(const void* first, int64_t rows, int64_t row_bytes, int64_t stride_bytes) {
    if (count_ == kTensors) return;
    const bool whole_lines = (reinterpret_cast<uint64_t>(first) | stride_bytes) % kLine == 0;
    const int64_t lines = (row_bytes + (whole_lines ? 0 : kLine - 1) + kLine - 1) / kLine;
    tensors_[count_++] = {static_cast<const char*>(first), lines, lines,
                          stride_bytes - lines * kLine, rows * lines};
  }

  // Fetches as many lines as the caches take while a tile of this depth is computed.
  MEGATRON_INLINE_MEMBER void Fetch(int64_t depth) {
    if (at_ == count_) return;
    Rows& rows = tensors_[at_];
    int64_t lines = depth / kDepthOfLine;
    rows.left -= lines;
    for (; lines > 0; --lines) {
      _mm_prefetch(rows.next, _MM_HINT_T1);
      const bool last = --rows.of_row == 0;
      rows.next += last ? kLine + rows.gap : kLine;
      rows.of_row = last ? rows.lines : rows.of_row;
    }
    if (rows.left > 0) return;
    if (++at_ == count_) at_ = count_ = 0;
  }

 private:
  static constexpr int kTensors = 16;
  static constexpr int64_t kLine = 64, kDepthOfLine = 2;
  struct Rows {
    const char* next;
    int64_t lines, of_row;  // lines of a row, and those of this row that are left
    int64_t gap, left;      // bytes between rows, and lines of all rows
  };
  Rows tensors_[kTensors];
  int count_ = 0, at_ = 0;
};

// What sums begin with.
struct FromZero {
  MEGATRON_INLINE_MEMBER Vec At(int64_t, int64_t) const { return Zero(); }
};
struct FromMatrix {
  Matrix<const float> matrix;
  MEGATRON_INLINE_MEMBER Vec At(int64_t row, int64_t column) const {
    return Load(matrix.data + row * matrix.stride + column);
  }
};
struct FromScaled {
  float factor;
  Matrix<const float> matrix;
  MEGATRON_INLINE_MEMBER Vec At(int64_t row, int64_t column) const {
    return Set(factor) * Load(matrix.data + row * matrix.stride + column);
  }
};
struct FromScaledRows {
  const float* factor;
  Matrix<const float> matrix;
  MEGATRON_INLINE_MEMBER Vec At(int64_t row, int64_t column) const {
    return Set(factor[row]) * Load(matrix.data + row * matrix.stride + column);
  }
};

// The parts of a product's depth that are needed for the tile of `rows` rows from m on.
struct All {
  static constexpr bool kLowerResult = false;
  int64_t depth;
  MEGATRON_INLINE_MEMBER Depth Of(int64_t, int64_t) const { return {0, depth}; }
};
// The result's elements behind the diagonal are not needed.
struct LowerResult {
  static constexpr bool kLowerResult = true;
  int64_t depth;
  MEGATRON_INLINE_MEMBER Depth Of(int64_t, int64_t) const { return {0, depth}; }
};
// The left matrix, or its transpose, is zero behind the diagonal.
struct LowerLeft {
  static constexpr bool kLowerResult = false;
  MEGATRON_INLINE_MEMBER Depth Of(int64_t m, int64_t rows) const { return {0, m + rows}; }
};
struct LowerLeftTransposed {
  static constexpr bool kLowerResult = false;
  int64_t rows;
  MEGATRON_INLINE_MEMBER Depth Of(int64_t m, int64_t) const { return {m, rows}; }
};

// Rows and vectors of the tiles of products. The sums of the larger ones and their operands fill
// the registers. Wide tiles load little: of each row one number for all of its vectors.
constexpr int64_t kLargeTileRows = 6, kSmallTileRows = 4;
constexpr int kTileVecs = kLanes == 16 ? 4 : 2;
// So many columns behind the diagonal are zero in a matrix of LowerLeft and LowerLeftTransposed.
static_assert(kLargeTileRows <= kLanes);

// The product's rows [m, m + kRows) and columns [n, n + kVecs kLanes).
template <int64_t kRows, int kVecs, bool kTransposed, typename Start>
MEGATRON_INLINE void ProductTile(Depth depth, int64_t m, int64_t n, Matrix<const float> a,
                                 Matrix<const float> b, const Start& start, Matrix<float> c) {
  Vec sum[kRows][kVecs];
#pragma GCC unroll 6
  for (int64_t i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) sum[i][v] = start.At(m + i, n + v * kLanes);
  }
  const int64_t row = kTransposed ? 1 : a.stride, step = kTransposed ? a.stride : 1;
  const float* left = a.data + m * row + depth.begin * step;
  const float* right = b.data + n + depth.begin * b.stride;
  for (int64_t k = depth.begin; k < depth.end; ++k) {
    Vec vec[kVecs];
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) vec[v] = Load(right + v * kLanes);
#pragma GCC unroll 6
    for (int64_t i = 0; i < kRows; ++i) {
      const Vec factor = Set(left[i * row]);
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) sum[i][v] = Fma(factor, vec[v], sum[i][v]);
    }
    left += step;
    right += b.stride;
  }
#pragma GCC unroll 6
  for (int64_t i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) Store(c.data + (m + i) * c.stride + n + v * kLanes, sum[i][v]);
  }
}

// The same for columns from n on, of which `vecs` vectors are needed.
template <int64_t kRows, bool kTransposed, typename Start>
MEGATRON_INLINE void ProductRows(Depth depth, int vecs, int64_t m, int64_t n, Matrix<const float> a,
                                 Matrix<const float> b, const Start& start, Matrix<float> c) {
  if constexpr (kTileVecs == 4) {
    if (vecs == 4) return ProductTile<kRows, 4, kTransposed>(depth, m, n, a, b, start, c);
    if (vecs == 3) return ProductTile<kRows, 3, kTransposed>(depth, m, n, a, b, start, c);
  }
  if (vecs == 2) return ProductTile<kRows, 2, kTransposed>(depth, m, n, a, b, start, c);
  ProductTile<kRows, 1, kTransposed>(depth, m, n, a, b, start, c);
}

// c[rows, columns] = start + a b. a's element (m, k) is a[k, m] if transposed.
template <bool kTransposed, typename Extent, typename Start>
__attribute__((noinline)) void Product(int64_t rows, int64_t columns, const Extent& extent,
                                       Matrix<const float> a, Matrix<const float> b,
                                       const Start& start, Matrix<float> c, Ahead* ahead) {
  for (int64_t n = 0; n < columns; n += kTileVecs * kLanes) {
    for (int64_t m = 0; m < rows;) {
      const int64_t left = rows - m;
      const bool large = left == kLargeTileRows || left >= kLargeTileRows + kSmallTileRows;
      const int64_t end = m + (large ? kLargeTileRows : kSmallTileRows);
      if (!Extent::kLowerResult || n < end) {
        const int64_t needed = (Extent::kLowerResult && end < columns ? end : columns) - n;
        const int vecs = needed > (kTileVecs - 1) * kLanes
                             ? kTileVecs
                             : static_cast<int>((needed + kLanes - 1) / kLanes);
        const Depth depth = extent.Of(m, end - m);
        if (large) {
          ProductRows<kLargeTileRows, kTransposed>(depth, vecs, m, n, a, b, start, c);
        } else {
          ProductRows<kSmallTileRows, kTransposed>(depth, vecs, m, n, a, b, start, c);
        }
        ahead->Fetch(depth.end - depth.begin);
      }
      m = end;
    }
  }
}

}  // namespace megatron::ops::MEGATRON_ISA

#endif  // MEGATRON_OPS_CPU_CHUNK_PRODUCT_H_
