// Attention of a block of few rows, such as the newest token of a text that is being continued. The
// kernel for many rows has rows in the lanes of vectors, most of which would be empty. Here lanes
// are keys in the product with the keys, and channels in that with the values. Each sum is formed
// in the same order, so the bits are the same.
#ifndef MEGATRON_OPS_CPU_ATTENTION_FEW_ROWS_H_
#define MEGATRON_OPS_CPU_ATTENTION_FEW_ROWS_H_

#include <cstdint>

#include "megatron/ops/cpu/attention_blocks.h"
#include "megatron/ops/cpu/attention_kernels.h"
#include "megatron/ops/cpu/attention_tile.h"
#include "megatron/ops/cpu/vec.h"

namespace megatron::ops::MEGATRON_ISA {

// The most rows of a block that is computed so.
constexpr int64_t kFewRows = 4;

static_assert(kKeyBlock % kLanes == 0);

// Packs a block of keys and values as PackKeys does. The rows of a cache lie as far apart as the
// groups of a token are wide, and a processor fetches ahead only what lies close by: kRowsAhead of
// them are asked for before they are read.
template <typename T>
class CachedRows {
 public:
  CachedRows(const AttentionProblem& problem, const AttentionPiece& piece, const Geometry& shape,
             const Rows& rows)
      : problem_(problem), piece_(piece), shape_(shape), end_(rows.KeysForSome()) {
    for (int64_t i = 0; i < kRowsAhead; ++i)
      Ask(rows.FirstKeyForSome() / kKeyBlock * kKeyBlock + i);
  }

  void Pack(const Keys& keys, float* k, float* v) const {
    for (int64_t j = 0; j < keys.count; ++j) {
      Ask(keys.first + j + kRowsAhead);
      const int64_t token = piece_.k_begin + keys.first + j;
      Put(At<T>(problem_.k, token, piece_.group, 0), shape_.key, j, k);
      Put(At<T>(problem_.v, token, piece_.group, 0), shape_.value, j, v);
    }
    for (int64_t j = keys.count; j < keys.padded; ++j) {
      Clear(shape_.key.width, k + j * shape_.key.width);
      Clear(shape_.value.width, v + j * shape_.value.width);
    }
  }

 private:
  static constexpr int64_t kRowsAhead = 12;
  static constexpr int64_t kLine = 64 / sizeof(T);  // elements of a line of the caches

  static void Put(const T* row, const Columns& columns, int64_t j, float* out) {
    Widen(row, columns.dim, 1, columns.width, out + j * columns.width);
  }
  void Ask(int64_t key) const {
    if (key >= end_) return;
    const int64_t token = piece_.k_begin + key;
    const T* const k = At<T>(problem_.k, token, piece_.group, 0);
    const T* const v = At<T>(problem_.v, token, piece_.group, 0);
    for (int64_t d = 0; d < shape_.key.dim; d += kLine) __builtin_prefetch(k + d);
    for (int64_t d = 0; d < shape_.value.dim; d += kLine) __builtin_prefetch(v + d);
  }

  const AttentionProblem& problem_;
  const AttentionPiece& piece_;
  const Geometry& shape_;
  const int64_t end_;
};

// scores[row, key] (rows of kKeyBlock) = q k. q [kRows, width] is scaled; k has rows of `width`.
template <int kRows>
void ScoresOfFewRows(const Columns& columns, const LaneKeys& seen, const float* q, const float* k,
                     float* scores) {
  const int64_t width = columns.width;
  for (int64_t j = seen.begin / kLanes * kLanes; j < seen.end; j += kLanes) {
    Vec sum[kRows];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) sum[r] = Zero();
    for (int64_t d = 0; d < columns.dim; d += kLanes) {
      Vec key[kLanes];  // after the transposition a channel of kLanes keys
#pragma GCC unroll 16
      for (int l = 0; l < kLanes; ++l) key[l] = Load(k + (j + l) * width + d);
      TransposeStep<1>(key);
      TransposeStep<2>(key);
      TransposeStep<4>(key);
#if defined(MEGATRON_ISA_AVX512)
      TransposeStep<8>(key);
#endif
      const auto add = [&](int64_t l) {
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) sum[r] = Fma(key[l], Set(q[r * width + d + l]), sum[r]);
      };
      if (d + kLanes <= columns.dim) {
#pragma GCC unroll 16
        for (int l = 0; l < kLanes; ++l) add(l);
      } else {
        for (int64_t l = 0; d + l < columns.dim; ++l) add(l);
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) Store(scores + r * kKeyBlock + j, sum[r]);
  }
}

// Scores of row r become exp(score - max so far), 0 for keys that it does not see; its max and sum
// are updated. Returns the factor of the previous sums.
inline float UpdateSoftmaxOfRow(const Rows& rows, const Keys& keys, const LaneKeys& seen, int64_t r,
                                float* scores, float* max, float* sum) {
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
  const float correction = lanes[0];
  float total = *sum * correction;
  for (int64_t j = first; j < last; j += kLanes) Store(scores + j, Exp(Load(scores + j) - base));
  for (int64_t j = begin; j < end; ++j) total = total + scores[j];
  *max = greatest;
  *sum = total;
  return correction;
}

// out[row, columns] += scores[row, key] v[key, columns] over the keys that some row sees. Unless it
// is null, `factor` multiplies each row of out first.
template <int kRows>
void AddValuesOfFewRows(const Columns& columns, const LaneKeys& seen, const float* scores,
                        const float* v, const float* factor, float* out) {
  constexpr int kVecs = 2;
  const int64_t width = columns.width;
  for (int64_t d = 0; d < width; d += kVecs * kLanes) {
    const bool both = d + kLanes < width;
    Vec sum[kRows][kVecs];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      sum[r][0] = Load(out + r * width + d);
      sum[r][1] = both ? Load(out + r * width + d + kLanes) : Zero();
      if (factor == nullptr) continue;
      sum[r][0] = sum[r][0] * Set(factor[r]);
      sum[r][1] = sum[r][1] * Set(factor[r]);
    }
    for (int64_t j = seen.begin; j < seen.end; ++j) {
      const Vec low = Load(v + j * width + d);
      const Vec high = both ? Load(v + j * width + d + kLanes) : Zero();
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const Vec p = Set(scores[r * kKeyBlock + j]);
        sum[r][0] = Fma(p, low, sum[r][0]);
        sum[r][1] = Fma(p, high, sum[r][1]);
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      Store(out + r * width + d, sum[r][0]);
      if (both) Store(out + r * width + d + kLanes, sum[r][1]);
    }
  }
}

}  // namespace megatron::ops::MEGATRON_ISA

#endif  // MEGATRON_OPS_CPU_ATTENTION_FEW_ROWS_H_
