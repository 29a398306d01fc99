// Attention of a block of few rows, such as the newest token of a text that is being continued. The
// kernel for many rows has rows in the lanes of vectors, most of which would be empty. Here lanes
// are keys in the product with the keys, and channels in that with the values. Each sum is formed
// in the same order, so the bits are the same.
//
// Keys and values are read where they lie. A token's groups are neighbours in a cache, so a piece
// has several groups: all of them use a block of keys, and then the next block.
#ifndef MEGATRON_OPS_CPU_ATTENTION_FEW_ROWS_H_
#define MEGATRON_OPS_CPU_ATTENTION_FEW_ROWS_H_

#include <cstdint>

#include "megatron/ops/cpu/attention_blocks.h"
#include "megatron/ops/cpu/attention_kernels.h"
#include "megatron/ops/cpu/attention_tile.h"
#include "megatron/ops/cpu/square_vec.h"
#include "megatron/ops/cpu/vec.h"

namespace megatron::ops::MEGATRON_ISA {

static_assert(kKeyBlock % kLanes == 0);

// The keys or the values of a block, for one group.
template <typename T>
struct RowsOfCache {
  const T* first;
  int64_t stride;

  RowsOfCache(const AttentionOperand& x, int64_t token, int64_t group)
      : first(At<T>(x, token, group, 0)), stride(x.token_stride) {}
};

// Asks for keys and values before they are read, in the order in which they lie in memory: a
// processor fetches ahead only what is read in that order.
template <typename T>
class KeysAhead {
 public:
  KeysAhead(const AttentionProblem& problem, const Geometry& shape)
      : problem_(problem), shape_(shape) {}

  // What follows, in so many calls of Ask(), are keys [first, end) of the piece's sequence.
  void Start(const AttentionPiece& piece, int64_t first, int64_t end, int64_t calls) {
    group_ = first_group_ = piece.group;
    end_group_ = piece.end_group;
    token_ = piece.k_begin + first;
    end_ = piece.k_begin + end;
    at_once_ = ((end - first) * (end_group_ - group_) + calls - 1) / calls;
  }
  void Stop() { token_ = end_; }

  void Ask() {
    for (int64_t i = 0; i < at_once_ && token_ < end_; ++i) {
      AskFor(problem_.k, shape_.key.dim);
      AskFor(problem_.v, shape_.value.dim);
      if (++group_ < end_group_) continue;
      group_ = first_group_;
      ++token_;
    }
  }

 private:
  static constexpr int64_t kLine = 64 / sizeof(T);  // elements of a cache line

  // They go to the second level: a block of all groups is too large for the first.
  void AskFor(const AttentionOperand& x, int64_t dim) const {
    const T* const row = At<T>(x, token_, group_, 0);
    for (int64_t d = 0; d < dim; d += kLine) __builtin_prefetch(row + d, /*rw=*/0, /*locality=*/2);
  }

  const AttentionProblem& problem_;
  const Geometry& shape_;
  int64_t token_ = 0, end_ = 0, group_ = 0, first_group_ = 0, end_group_ = 0, at_once_ = 0;
};

// scores[row, key] (rows of kKeyBlock) = q k, for the lanes of keys that some row sees. q [kRows,
// width] is scaled. The block has `count` keys.
template <int kRows, typename T>
void ScoresOfFewRows(const Columns& columns, int64_t count, const LaneKeys& seen, const float* q,
                     const RowsOfCache<T>& k, KeysAhead<T>* ahead, float* scores) {
  constexpr int kElements = Square<T>::kElements;
  const int64_t width = columns.width;
  for (int64_t j = seen.begin / kLanes * kLanes; j < seen.end; j += kLanes) {
    const T* row[kLanes];  // behind the last key, that one again
    for (int l = 0; l < kLanes; ++l) {
      row[l] = k.first + Min(j + l, count - 1) * k.stride;
      ahead->Ask();
    }
    Vec sum[kRows];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) sum[r] = Zero();
    for (int64_t d = 0; d < columns.dim; d += kElements) {
      const int64_t left = columns.dim - d;
      Square<T> square;
#pragma GCC unroll 16
      for (int l = 0; l < kLanes; ++l) square.SetRow(l, row[l] + d, left);
      square.Turn();
      const auto add = [&](int e) {
        const Vec key = square.Across(e);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) sum[r] = Fma(key, Set(q[r * width + d + e]), sum[r]);
      };
      if (left >= kElements) {
#pragma GCC unroll 32
        for (int e = 0; e < kElements; ++e) add(e);
      } else {
#pragma GCC unroll 32
        for (int e = 0; e < kElements; ++e) {
          if (e < left) add(e);
        }
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) Store(scores + r * kKeyBlock + j, sum[r]);
  }
}

// Scores of row r become exp(score - max so far), 0 for keys that it does not see; its max is
// updated. Returns the factor of the previous sums.
inline float UpdateSoftmaxOfRow(const Rows& rows, const Keys& keys, const LaneKeys& seen, int64_t r,
                                float* scores, float* max) {
  const int64_t begin = Clamp(rows.begin[r] - keys.first, 0, keys.count);
  const int64_t end = Clamp(rows.limit[r] - keys.first, begin, keys.count);
  const int64_t first = seen.begin / kLanes * kLanes, last = RoundUp(seen.end, kLanes);
  for (int64_t j = first; j < begin; ++j) scores[j] = -__builtin_inff();
  for (int64_t j = end > first ? end : first; j < last; ++j) scores[j] = -__builtin_inff();
  Vec largest = Set(*max);
  for (int64_t j = first; j < last; j += kLanes) largest = Max(largest, Load(scores + j));
  float lanes[kLanes], greatest = *max;
  Store(lanes, largest);
  for (int l = 0; l < kLanes; ++l) greatest = __builtin_fmaxf(greatest, lanes[l]);
  const Vec base = Max(Set(greatest), Set(-3e38f));
  Store(lanes, Exp(Set(*max) - base));
  for (int64_t j = first; j < last; j += kLanes) Store(scores + j, Exp(Load(scores + j) - base));
  *max = greatest;
  return lanes[0];
}

// out[row, columns] += scores[row, key] v[key, columns] over the keys that some row sees, for kVecs
// vectors of columns of which `left` columns are there. Unless it is null, `factor` multiplies each
// row of out first. If kSums, the scores (0 for keys that a row does not see) are added to `sum`.
template <int kRows, int kVecs, bool kSums, typename T>
MEGATRON_INLINE void AddValueColumns(const LaneKeys& seen, int64_t left, const float* scores,
                                     const T* v, int64_t stride, const float* factor, float* sum,
                                     float* out, int64_t width) {
  Vec total[kRows], sums[kRows][kVecs];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    if constexpr (kSums) total[r] = Set(sum[r]);
#pragma GCC unroll 4
    for (int i = 0; i < kVecs; ++i) {
      sums[r][i] = Load(out + r * width + i * kLanes);
      if (factor != nullptr) sums[r][i] = sums[r][i] * Set(factor[r]);
    }
  }
  for (int64_t j = seen.begin; j < seen.end; ++j) {
    Vec value[kVecs];
#pragma GCC unroll 4
    for (int i = 0; i < kVecs; ++i) {
      const T* const at = v + j * stride + i * kLanes;
      value[i] = kVecs > 1 ? Load(at) : LoadUpTo(at, left);
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const Vec p = Set(scores[r * kKeyBlock + j]);
      if constexpr (kSums) total[r] = total[r] + p;
#pragma GCC unroll 4
      for (int i = 0; i < kVecs; ++i) sums[r][i] = Fma(p, value[i], sums[r][i]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    if constexpr (kSums) {
      float lanes[kLanes];
      Store(lanes, total[r]);
      sum[r] = lanes[0];
    }
#pragma GCC unroll 4
    for (int i = 0; i < kVecs; ++i) Store(out + r * width + i * kLanes, sums[r][i]);
  }
}

// The same for all columns, and for the sums.
template <int kRows, typename T>
void AddValuesOfFewRows(const Columns& columns, const LaneKeys& seen, const float* scores,
                        const RowsOfCache<T>& v, const float* factor, float* sum, float* out) {
  constexpr int kVecs = kLanes == 16 ? 4 : 2;  // as many as there are registers for
  const int64_t width = columns.width;
  int64_t d = 0;
  if (columns.dim >= kVecs * kLanes) {
    AddValueColumns<kRows, kVecs, true>(seen, columns.dim, scores, v.first, v.stride, factor, sum,
                                        out, width);
    d = kVecs * kLanes;
  } else {
    AddValueColumns<kRows, 1, true>(seen, columns.dim, scores, v.first, v.stride, factor, sum, out,
                                    width);
    d = kLanes;
  }
  for (; d + kVecs * kLanes <= columns.dim; d += kVecs * kLanes) {
    AddValueColumns<kRows, kVecs, false>(seen, columns.dim - d, scores, v.first + d, v.stride,
                                         factor, sum, out + d, width);
  }
  for (; d < columns.dim; d += kLanes) {
    AddValueColumns<kRows, 1, false>(seen, columns.dim - d, scores, v.first + d, v.stride, factor,
                                     sum, out + d, width);
  }
}

}  // namespace megatron::ops::MEGATRON_ISA

#endif  // MEGATRON_OPS_CPU_ATTENTION_FEW_ROWS_H_
