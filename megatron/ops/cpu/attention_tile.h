// Products and transposes of small packed fp32 matrices, for attention.
#ifndef MEGATRON_OPS_CPU_ATTENTION_TILE_H_
#define MEGATRON_OPS_CPU_ATTENTION_TILE_H_

#include <cstdint>

#include "megatron/ops/cpu/square_vec.h"
#include "megatron/ops/cpu/vec.h"

namespace megatron::ops::MEGATRON_ISA {

// Eight or more independent chains of sums hide the latency of a multiply-add.
constexpr int64_t kTileRows = kLanes == 16 ? 8 : 4;
constexpr int64_t kMaxTileRows = 8;  // counts of rows are padded to a multiple of it

// The part [begin, end) of a product's depth that a tile of its result needs.
struct Depth {
  int64_t begin, end;
};

// c[kTileRows, kVecs * kLanes] (+)= a b. a's element (m, k) is a[m * lda + k], or a[k * lda + m] if
// transposed.
template <int kVecs, bool kTransposed, bool kAccumulate>
MEGATRON_INLINE void MultiplyTile(Depth depth, const float* a, int64_t lda, const float* b,
                                  int64_t ldb, float* c, int64_t ldc) {
  Vec sum[kTileRows][kVecs];
#pragma GCC unroll 8
  for (int m = 0; m < kTileRows; ++m) {
#pragma GCC unroll 2
    for (int v = 0; v < kVecs; ++v) {
      sum[m][v] = kAccumulate ? Load(c + m * ldc + v * kLanes) : Zero();
    }
  }
  for (int64_t k = depth.begin; k < depth.end; ++k) {
    Vec right[kVecs];
#pragma GCC unroll 2
    for (int v = 0; v < kVecs; ++v) right[v] = Load(b + k * ldb + v * kLanes);
#pragma GCC unroll 8
    for (int m = 0; m < kTileRows; ++m) {
      const Vec left = Set(kTransposed ? a[k * lda + m] : a[m * lda + k]);
#pragma GCC unroll 2
      for (int v = 0; v < kVecs; ++v) sum[m][v] = Fma(left, right[v], sum[m][v]);
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < kTileRows; ++m) {
#pragma GCC unroll 2
    for (int v = 0; v < kVecs; ++v) Store(c + m * ldc + v * kLanes, sum[m][v]);
  }
}

// A matrix in memory, row by row.
template <typename T>
struct Matrix {
  T* data;
  int64_t stride;
};

// c[rows, columns] (+)= a b, in steps of kMaxTileRows rows and kLanes columns. depth_of(m, n,
// width) returns the depth that the tile of rows from m on and `width` columns from n on needs.
template <bool kTransposed, bool kAccumulate, typename DepthOf>
__attribute__((noinline)) void MatrixProduct(int64_t rows, int64_t columns, const DepthOf& depth_of,
                                             Matrix<const float> a, Matrix<const float> b,
                                             Matrix<float> c) {
  const int64_t step = kTransposed ? 1 : a.stride;
  int64_t n = 0;
  for (; n + 2 * kLanes <= columns; n += 2 * kLanes) {
    for (int64_t m = 0; m < rows; m += kTileRows) {
      MultiplyTile<2, kTransposed, kAccumulate>(depth_of(m, n, 2 * kLanes), a.data + m * step,
                                                a.stride, b.data + n, b.stride,
                                                c.data + m * c.stride + n, c.stride);
    }
  }
  if (n == columns) return;
  for (int64_t m = 0; m < rows; m += kTileRows) {
    MultiplyTile<1, kTransposed, kAccumulate>(depth_of(m, n, kLanes), a.data + m * step, a.stride,
                                              b.data + n, b.stride, c.data + m * c.stride + n,
                                              c.stride);
  }
}

// out[columns, rows] = in[rows, columns]; both counts are multiples of kLanes.
static inline void Transpose(int64_t rows, int64_t columns, Matrix<const float> in,
                             Matrix<float> out) {
  for (int64_t i = 0; i < rows; i += kLanes) {
    for (int64_t j = 0; j < columns; j += kLanes) {
      Vec row[kLanes];
#pragma GCC unroll 16
      for (int l = 0; l < kLanes; ++l) row[l] = Load(in.data + (i + l) * in.stride + j);
      Transpose(row);
#pragma GCC unroll 16
      for (int l = 0; l < kLanes; ++l) Store(out.data + (j + l) * out.stride + i, row[l]);
    }
  }
}

}  // namespace megatron::ops::MEGATRON_ISA

#endif  // MEGATRON_OPS_CPU_ATTENTION_TILE_H_
