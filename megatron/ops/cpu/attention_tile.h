// The pieces that forward and backward attention share, on blocks of kBlock rows by kBlock keys in
// fp32.
//
// Scores are kept transposed, [key, row]: lanes are rows, so that maxima and sums over keys are
// vertical, and grouped heads and a causal edge need nothing special. Q and dO are packed as [D,
// row] for the products that make scores, everything else as it lies.
#ifndef MEGATRON_OPS_CPU_ATTENTION_TILE_H_
#define MEGATRON_OPS_CPU_ATTENTION_TILE_H_

#include <cstdint>

#include "megatron/ops/cpu/attention_kernels.h"
#include "megatron/ops/cpu/vec.h"

namespace megatron::ops::MEGATRON_ISA {

constexpr int64_t kBlock = kAttentionBlock;
constexpr int64_t kTileRows = kLanes == 16 ? 8 : 4;
constexpr int64_t kMaxTileRows = 8;  // what row counts are padded to

inline int64_t RoundUp(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}
inline int64_t Min(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t Clamp(int64_t x, int64_t low, int64_t high) {
  return x < low ? low : x > high ? high : x;
}

// c[kTileRows, kVecs * kLanes] (+)= a b. a's element (m, k) is a[m * lda + k], or a[k * lda + m] if
// transposed.
template <int kVecs, bool kTransposed, bool kAccumulate>
__attribute__((always_inline)) inline void MultiplyTile(int64_t depth, const float* a, int64_t lda,
                                                        const float* b, int64_t ldb, float* c,
                                                        int64_t ldc) {
  Vec sum[kTileRows][kVecs];
#pragma GCC unroll 8
  for (int m = 0; m < kTileRows; ++m) {
#pragma GCC unroll 2
    for (int v = 0; v < kVecs; ++v)
      sum[m][v] = kAccumulate ? Load(c + m * ldc + v * kLanes) : Set(0);
  }
  for (int64_t k = 0; k < depth; ++k) {
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

// c[rows, columns] (+)= a[rows, depth] b[depth, columns]; rows go by kMaxTileRows and columns by
// kLanes.
template <bool kTransposed, bool kAccumulate>
void MatrixProduct(int64_t rows, int64_t columns, int64_t depth, const float* a, int64_t lda,
                   const float* b, int64_t ldb, float* c, int64_t ldc) {
  const int64_t step = kTileRows * (kTransposed ? 1 : lda);
  int64_t n = 0;
  for (; n + 2 * kLanes <= columns; n += 2 * kLanes) {
    for (int64_t m = 0; m < rows; m += kTileRows) {
      MultiplyTile<2, kTransposed, kAccumulate>(depth, a + m / kTileRows * step, lda, b + n, ldb,
                                                c + m * ldc + n, ldc);
    }
  }
  if (n == columns) return;
  for (int64_t m = 0; m < rows; m += kTileRows) {
    MultiplyTile<1, kTransposed, kAccumulate>(depth, a + m / kTileRows * step, lda, b + n, ldb,
                                              c + m * ldc + n, ldc);
  }
}

template <typename T>
const T* At(const AttentionOperand& x, int64_t token, int64_t group, int64_t head) {
  return static_cast<const T*>(x.data) + token * x.token_stride + group * x.group_stride +
         head * x.head_stride;
}
template <typename T>
T* MutableAt(const AttentionOperand& x, int64_t token, int64_t group, int64_t head) {
  return static_cast<T*>(x.data) + token * x.token_stride + group * x.group_stride +
         head * x.head_stride;
}

// out[0, padded) = scale * in[0, count) in fp32, zeros after it; padded goes by kLanes.
template <typename T>
void Widen(const T* in, int64_t count, float scale, int64_t padded, float* out) {
  int64_t d = 0;
  for (; d + kLanes <= count; d += kLanes) Store(out + d, Load(in + d) * Set(scale));
  if (d < count) {
    Store(out + d, LoadPartial(in + d, static_cast<int>(count - d)) * Set(scale));
    d += kLanes;
  }
  for (; d < padded; d += kLanes) Store(out + d, Set(0));
}

// out[0, count) = scale * in[0, count).
template <typename T>
void Narrow(const float* in, int64_t count, float scale, T* out) {
  int64_t d = 0;
  for (; d + kLanes <= count; d += kLanes) Store(out + d, Load(in + d) * Set(scale));
  if (d < count) StorePartial(out + d, Load(in + d) * Set(scale), static_cast<int>(count - d));
}

// What the blocks of one piece have in common.
struct Geometry {
  int64_t rows;      // of the sequence and group
  int64_t heads;     // R
  int64_t dim;       // D
  int64_t width;     // D rounded up to whole vectors: the row length of packed tiles
  int64_t diagonal;  // the first query sees keys [0, diagonal] if causal

  Geometry(const AttentionProblem& problem, const AttentionPiece& piece)
      : rows(piece.q_length * problem.group_heads),
        heads(problem.group_heads),
        dim(problem.head_dim),
        width(RoundUp(problem.head_dim, kLanes)),
        diagonal(piece.k_length - piece.q_length) {}
};

// A block of rows.
struct Rows {
  int64_t first, count;
  int64_t padded;         // count rounded up to whole vectors
  int64_t keys_for_all;   // keys that every row sees
  int64_t keys_for_some;  // keys that some row sees
  int32_t limit[kBlock];  // keys that each row sees
  int64_t token[kBlock];  // in the packed batch
  int64_t head[kBlock];   // in the group

  Rows(const AttentionProblem& problem, const AttentionPiece& piece, const Geometry& shape,
       int64_t block)
      : first(block * kBlock),
        count(Min(kBlock, shape.rows - first)),
        padded(RoundUp(count, kLanes)) {
    for (int64_t i = 0; i < padded; ++i) {
      const int64_t row = first + Min(i, count - 1);
      const int64_t query = row / shape.heads;
      token[i] = piece.q_begin + query;
      head[i] = row % shape.heads;
      limit[i] = static_cast<int32_t>(
          problem.causal ? Clamp(query + shape.diagonal + 1, 0, piece.k_length) : piece.k_length);
    }
    keys_for_all = limit[0];
    keys_for_some = limit[count - 1];
  }
};

// A block of keys as `rows` sees it; `padded` rows of the packed tiles are defined, those from
// `count` on are zero.
struct Keys {
  int64_t first, count, padded;

  Keys(const Rows& rows, int64_t block)
      : first(block * kBlock),
        count(Min(kBlock, rows.keys_for_some - first)),
        padded(RoundUp(count, kMaxTileRows)) {}
};

template <typename T>
void PackKeys(const AttentionOperand& x, const AttentionPiece& piece, const Geometry& shape,
              const Keys& keys, float* out) {
  for (int64_t j = 0; j < keys.count; ++j) {
    Widen(At<T>(x, piece.k_begin + keys.first + j, piece.group, 0), shape.dim, 1, shape.width,
          out + j * shape.width);
  }
  for (int64_t j = keys.count; j < keys.padded; ++j) {
    for (int64_t d = 0; d < shape.width; d += kLanes) Store(out + j * shape.width + d, Set(0));
  }
}

template <typename T>
void PackRows(const AttentionOperand& x, const AttentionPiece& piece, const Geometry& shape,
              const Rows& rows, float scale, float* out) {
  for (int64_t i = 0; i < rows.count; ++i) {
    Widen(At<T>(x, rows.token[i], piece.group, rows.head[i]), shape.dim, scale, shape.width,
          out + i * shape.width);
  }
  for (int64_t i = rows.count; i < rows.padded; ++i) {
    for (int64_t d = 0; d < shape.width; d += kLanes) Store(out + i * shape.width + d, Set(0));
  }
}

// [row, width] to [D, kBlock].
inline void Transpose(const Geometry& shape, const Rows& rows, const float* in, float* out) {
  for (int64_t d = 0; d < shape.dim; ++d) {
    for (int64_t i = 0; i < rows.padded; ++i) out[d * kBlock + i] = in[i * shape.width + d];
  }
}

// Scores [key, row] that causality hides become minus infinity.
inline void HideKeys(const Rows& rows, const Keys& keys, float* scores) {
  const int64_t visible = rows.keys_for_all - keys.first;
  for (int64_t j = visible < 0 ? 0 : visible; j < keys.count; ++j) {
    float* row = scores + j * kBlock;
    for (int64_t i = 0; i < rows.padded; ++i)
      row[i] = rows.limit[i] > keys.first + j ? row[i] : -__builtin_inff();
  }
}

}  // namespace megatron::ops::MEGATRON_ISA

#endif  // MEGATRON_OPS_CPU_ATTENTION_TILE_H_
