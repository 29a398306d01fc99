// Blocks of rows and of keys in attention: which keys a row sees, and how blocks are packed.
//
// Scores are kept transposed, [key, row]: lanes are rows. So maxima and sums over keys are
// vertical, and grouped heads and the causal edge need no special case. Packed tiles are fp32; each
// row or key takes whole vectors.
#ifndef MEGATRON_OPS_CPU_ATTENTION_BLOCKS_H_
#define MEGATRON_OPS_CPU_ATTENTION_BLOCKS_H_

#include <cstdint>

#include "megatron/ops/cpu/attention_kernels.h"
#include "megatron/ops/cpu/attention_tile.h"
#include "megatron/ops/cpu/packed_rows.h"
#include "megatron/ops/cpu/soft_cap.h"
#include "megatron/ops/cpu/vec.h"

namespace megatron::ops::MEGATRON_ISA {

constexpr int64_t kRowBlock = kAttentionRows;
constexpr int64_t kKeyBlock = kAttentionKeys;

inline int64_t Min(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t Clamp(int64_t x, int64_t low, int64_t high) {
  return x < low ? low : x > high ? high : x;
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

// out[0, count) = keep * out + scale * in[0, count). If keep is 0, out is not read.
inline void Blend(const float* in, int64_t count, float scale, float keep, float* out) {
  if (keep == 0) return Narrow(in, count, scale, out);
  int64_t d = 0;
  for (; d + kLanes <= count; d += kLanes)
    Store(out + d, Fma(Load(out + d), Set(keep), Load(in + d) * Set(scale)));
  if (d == count) return;
  const int rest = static_cast<int>(count - d);
  StorePartial(out + d, Fma(LoadPartial(out + d, rest), Set(keep), Load(in + d) * Set(scale)),
               rest);
}

// row of x = keep * row + scale * in. x is of type T or fp32; only fp32 can be kept.
template <typename T>
void WriteRow(const float* in, int64_t count, float scale, float keep, const AttentionOperand& x,
              int64_t token, int64_t group, int64_t head) {
  if (x.dtype == DType::kFloat32) {
    Blend(in, count, scale, keep, MutableAt<float>(x, token, group, head));
  } else {
    Narrow(in, count, scale, MutableAt<T>(x, token, group, head));
  }
}

// The columns of a head: those of queries and keys, or those of values.
struct Columns {
  int64_t dim;    // D or E
  int64_t width;  // rounded up to whole vectors: the row length of packed tiles

  explicit Columns(int64_t count) : dim(count), width(RoundUp(count, kLanes)) {}
};

// The sizes that all blocks of one piece share.
struct Geometry {
  int64_t rows;   // number of rows of the sequence and group
  int64_t heads;  // R
  Columns key, value;
  int64_t diagonal;  // the first query sees keys [0, diagonal] if causal

  Geometry(const AttentionProblem& problem, const AttentionPiece& piece)
      : rows(piece.q_length * problem.group_heads),
        heads(problem.group_heads),
        key(problem.head_dim),
        value(problem.value_dim),
        diagonal(piece.k_length - piece.q_length) {}
};

// Returns how many of the ascending places are below `place`.
inline int64_t CountBelow(const int32_t* places, int64_t count, int64_t place) {
  int64_t begin = 0;
  while (begin < count) {
    const int64_t middle = (begin + count) / 2;
    if (places[middle] < place) {
      begin = middle + 1;
    } else {
      count = middle;
    }
  }
  return begin;
}

// A block of rows. Rows from `count` to `padded` repeat the last one if they are read. A row sees
// the keys of its sequence from `begin` up to `limit`; both ascend.
struct Rows {
  int64_t first, count;
  int64_t padded;  // count rounded up to whole vectors
  int32_t begin[kRowBlock], limit[kRowBlock];
  int64_t token[kRowBlock];  // index in the packed batch
  int64_t head[kRowBlock];   // index in the group

  Rows(const AttentionProblem& problem, const AttentionPiece& piece, const Geometry& shape,
       int64_t block)
      : first(block * kRowBlock),
        count(Min(kRowBlock, shape.rows - first)),
        padded(RoundUp(count, kLanes)) {
    for (int64_t i = 0; i < padded; ++i) {
      begin[i] = i > 0 ? begin[i - 1] : 0;
      limit[i] = i > 0 ? limit[i - 1] : static_cast<int32_t>(piece.k_length);
      if (i >= count) {
        token[i] = token[i - 1];
        head[i] = head[i - 1];
        continue;
      }
      const int64_t row = first + i, query = row / shape.heads;
      token[i] = piece.q_begin + query;
      head[i] = row % shape.heads;
      if (!problem.causal || (i > 0 && token[i] == token[i - 1])) continue;
      if (problem.place_q == nullptr) {
        SetVisible(query + shape.diagonal, problem.window_size, piece.k_length, i);
      } else {
        SetVisible(problem.place_k + piece.k_begin, problem.place_q[token[i]], problem.window_size,
                   piece.k_length, i);
      }
    }
  }

  int64_t KeysForAll() const { return limit[0]; }
  int64_t KeysForSome() const { return limit[padded - 1]; }
  int64_t FirstKeyForAll() const { return begin[padded - 1]; }
  int64_t FirstKeyForSome() const { return begin[0]; }
  bool SeesNone(int64_t i) const { return begin[i] >= limit[i]; }

 private:
  // The keys of row i, whose query is at `place`.
  void SetVisible(int64_t place, int64_t window, int64_t keys, int64_t i) {
    limit[i] = static_cast<int32_t>(Clamp(place + 1, 0, keys));
    if (window > 0) begin[i] = static_cast<int32_t>(Clamp(place - window, 0, keys));
  }
  void SetVisible(const int32_t* places, int64_t place, int64_t window, int64_t keys, int64_t i) {
    limit[i] = static_cast<int32_t>(CountBelow(places, keys, place + 1));
    if (window > 0) begin[i] = static_cast<int32_t>(CountBelow(places, keys, place - window));
  }
};

// The row blocks of a piece: where there is a window and the piece wants gradients of keys
// [first_key, end_key) alone, those with rows that see some of them.
struct SeeingRowBlocks {
  int64_t first, end;

  SeeingRowBlocks(const AttentionProblem& problem, const AttentionPiece& piece,
                  const Geometry& shape, int64_t first_key, int64_t end_key)
      : first(piece.first_row_block), end(piece.end_row_block) {
    if (problem.window_size == 0 || piece.wants_dq || first_key >= end_key) return;
    int64_t from = first_key - shape.diagonal;
    int64_t to = end_key + problem.window_size - shape.diagonal;
    if (problem.place_q != nullptr) {
      const int32_t* const queries = problem.place_q + piece.q_begin;
      const int32_t* const keys = problem.place_k + piece.k_begin;
      from = CountBelow(queries, piece.q_length, keys[first_key]);
      to = CountBelow(queries, piece.q_length, keys[end_key - 1] + problem.window_size + 1);
    }
    from = Clamp(from, 0, piece.q_length) * shape.heads / kRowBlock;
    to = (Clamp(to, 0, piece.q_length) * shape.heads + kRowBlock - 1) / kRowBlock;
    first = from > first ? from : first;
    end = Min(end, to);
  }
};

// A block of keys as `rows` sees it. `padded` rows of the packed tiles are defined; those from
// `count` on are zero.
struct Keys {
  int64_t first, count, padded;

  Keys(const Rows& rows, int64_t block)
      : first(block * kKeyBlock),
        count(Min(kKeyBlock, rows.KeysForSome() - first)),
        padded(RoundUp(count, kMaxTileRows)) {}
};

// The range [begin, end) of a block's keys that some of kLanes rows see, from row i on.
struct LaneKeys {
  int64_t begin, end;

  LaneKeys(const Rows& rows, const Keys& keys, int64_t i)
      : begin(Clamp(rows.begin[i] - keys.first, 0, keys.count)),
        end(Clamp(rows.limit[i + kLanes - 1] - keys.first, begin, keys.count)) {}
};

// Depths of products (attention_tile.h), without the parts that the causal mask and the window
// hide.

// The depth of a tile of scores [key, row]: all of the head's dims, or nothing.
struct ScoreDepth {
  const Rows& rows;
  const Keys& keys;
  int64_t dim;

  Depth operator()(int64_t key, int64_t row, int64_t width) const {
    const int64_t from = keys.first + key;
    const bool seen = from < rows.limit[row + width - 1] && from + kTileRows > rows.begin[row];
    return {0, seen ? dim : 0};
  }
};

// The depth of a tile of a per-row result: the keys from the first that the tile's first row sees
// to the last that its last row sees.
struct KeysSeen {
  const Rows& rows;
  const Keys& keys;

  Depth operator()(int64_t row, int64_t, int64_t) const {
    return {Clamp(rows.begin[row] - keys.first, 0, keys.count),
            Clamp(rows.limit[row + kTileRows - 1] - keys.first, 0, keys.count)};
  }
};

// The depth of a tile of a per-key result: the rows from the first that sees the tile's first key
// to the last that sees its last.
struct RowsSeeing {
  int64_t first_row[kKeyBlock / kTileRows], end_row[kKeyBlock / kTileRows];

  RowsSeeing(const Rows& rows, const Keys& keys) {
    int64_t row = 0, end = 0;
    for (int64_t key = 0; key < keys.padded; key += kTileRows) {
      while (row < rows.count && rows.limit[row] <= keys.first + key) ++row;
      while (end < rows.count && rows.begin[end] < keys.first + key + kTileRows) ++end;
      first_row[key / kTileRows] = row;
      end_row[key / kTileRows] = end;
    }
  }

  Depth operator()(int64_t key, int64_t, int64_t) const {
    return {first_row[key / kTileRows], end_row[key / kTileRows]};
  }
};

template <typename T>
void PackKeys(const AttentionOperand& x, const AttentionPiece& piece, const Columns& columns,
              const Keys& keys, float* out) {
  const int64_t width = columns.width;
  for (int64_t j = 0; j < keys.count; ++j) {
    Widen(At<T>(x, piece.k_begin + keys.first + j, piece.group, 0), columns.dim, 1, width,
          out + j * width);
  }
  for (int64_t j = keys.count; j < keys.padded; ++j) {
    for (int64_t d = 0; d < width; d += kLanes) Store(out + j * width + d, Zero());
  }
}

template <typename T>
void PackRows(const AttentionOperand& x, const AttentionPiece& piece, const Columns& columns,
              const Rows& rows, float scale, float* out) {
  const int64_t width = columns.width;
  for (int64_t i = 0; i < rows.count; ++i) {
    Widen(At<T>(x, rows.token[i], piece.group, rows.head[i]), columns.dim, scale, width,
          out + i * width);
  }
  for (int64_t i = rows.count; i < rows.padded; ++i) {
    for (int64_t d = 0; d < width; d += kLanes) Store(out + i * width + d, Zero());
  }
}

// Caps the scores [key, row] that some of kLanes rows see.
inline void CapScores(const AttentionProblem& problem, const Rows& rows, const Keys& keys,
                      float* scores) {
  if (problem.softcap == 0) return;
  for (int64_t i = 0; i < rows.padded; i += kLanes) {
    const LaneKeys seen(rows, keys, i);
    for (int64_t j = seen.begin; j < seen.end; ++j) {
      float* const at = scores + j * kRowBlock + i;
      Store(at, SoftCapOf(Load(at), problem.softcap));
    }
  }
}

// Sets scores [key, row] that the causal mask or the window hides to minus infinity.
inline void HideKeys(const Rows& rows, const Keys& keys, float* scores) {
  const auto hide = [&](int64_t from, int64_t to) {
    for (int64_t j = from; j < to; ++j) {
      const int32_t key = static_cast<int32_t>(keys.first + j);
      float* row = scores + j * kRowBlock;
      for (int64_t i = 0; i < rows.padded; ++i) {
        row[i] = rows.limit[i] > key && rows.begin[i] <= key ? row[i] : -__builtin_inff();
      }
    }
  };
  // All rows see the keys in between.
  const int64_t begin = Clamp(rows.FirstKeyForAll() - keys.first, 0, keys.count);
  const int64_t end = Clamp(rows.KeysForAll() - keys.first, 0, keys.count);
  hide(0, begin);
  hide(begin > end ? begin : end, keys.count);
}

}  // namespace megatron::ops::MEGATRON_ISA

#endif  // MEGATRON_OPS_CPU_ATTENTION_BLOCKS_H_
