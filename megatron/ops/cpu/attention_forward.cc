#include "megatron/ops/cpu/attention_bias.h"
#include "megatron/ops/cpu/attention_blocks.h"
#include "megatron/ops/cpu/attention_dropout.h"
#include "megatron/ops/cpu/attention_few_rows.h"
#include "megatron/ops/cpu/attention_kernels.h"
#include "megatron/ops/cpu/vec.h"

namespace megatron::ops::MEGATRON_ISA {
namespace {

// The running softmax of one block of rows.
struct Softmax {
  float max[kRowBlock], sum[kRowBlock], correction[kRowBlock];
};

struct Workspace {
  float *q, *q_transposed;  // [kRowBlock, key width] and its transpose
  float* out;               // [kRowBlock, value width]
  float *k, *v;             // [kKeyBlock, width]
  float *scores, *factor;   // [kKeyBlock, kRowBlock]

  Workspace(const Geometry& shape, float* scratch) {
    q = scratch;
    q_transposed = q + kRowBlock * shape.key.width;
    out = q_transposed + kRowBlock * shape.key.width;
    k = out + kRowBlock * shape.value.width;
    v = k + kKeyBlock * shape.key.width;
    scores = v + kKeyBlock * shape.value.width;
    factor = scores + kKeyBlock * kRowBlock;
  }
};

// Scores become exp(score - max so far) where any of the lanes sees the key, and nothing reads the
// others; max, sum and correction (the factor of the previous sums) are updated.
void UpdateSoftmax(const Rows& rows, const Keys& keys, float* scores, Softmax* softmax) {
  for (int64_t i = 0; i < rows.padded; i += kLanes) {
    const LaneKeys seen(rows, keys, i);
    const Vec old_max = Load(softmax->max + i);
    Vec max = old_max;
    for (int64_t j = seen.begin; j < seen.end; ++j)
      max = Max(max, Load(scores + j * kRowBlock + i));
    // A row that has seen no key keeps minus infinity, which must not be subtracted from itself.
    const Vec base = Max(max, Set(-3e38f));
    const Vec correction = Exp(old_max - base);
    Vec sum = Load(softmax->sum + i) * correction;
    for (int64_t j = seen.begin; j < seen.end; ++j) {
      const Vec p = Exp(Load(scores + j * kRowBlock + i) - base);
      Store(scores + j * kRowBlock + i, p);
      sum = sum + p;
    }
    Store(softmax->max + i, max);
    Store(softmax->sum + i, sum);
    Store(softmax->correction + i, correction);
  }
}

void ScaleRows(const Columns& columns, const Rows& rows, const float* factor, float* out) {
  for (int64_t i = 0; i < rows.count; ++i) {
    const Vec f = Set(factor[i]);
    for (int64_t d = 0; d < columns.width; d += kLanes) {
      float* p = out + i * columns.width + d;
      Store(p, Load(p) * f);
    }
  }
}

// Not both are minus infinity.
inline float LogSumExp(float a, float b) {
  return __builtin_fmaxf(a, b) + __builtin_log1pf(__builtin_expf(-__builtin_fabsf(a - b)));
}

// `max`, `sum` and `out` are those of the rows of one group.
template <typename T>
void StoreRows(const AttentionProblem& problem, int64_t group, const Geometry& shape,
               const Rows& rows, const float* max, const float* sum, const float* out) {
  for (int64_t i = 0; i < rows.count; ++i) {
    float* const stored_lse = MutableAt<float>(problem.lse, rows.token[i], group, rows.head[i]);
    const bool sees_none = rows.SeesNone(i);
    if (sees_none && problem.add_to_queries && problem.sink == nullptr) continue;
    float factor = sees_none ? 0 : 1 / sum[i], keep = 0;
    float lse = max[i] + __builtin_logf(sum[i]);
    if (problem.add_to_queries && sees_none) {
      lse = *stored_lse;
      keep = 1;
    } else if (problem.add_to_queries) {
      const float before = *stored_lse, mine = lse;
      lse = LogSumExp(before, mine);
      keep = __builtin_expf(before - lse);
      factor *= __builtin_expf(mine - lse);
    }
    if (problem.sink != nullptr) {
      const float before = lse;
      lse = LogSumExp(before, problem.sink[group * problem.group_heads + rows.head[i]]);
      keep *= __builtin_expf(before - lse);
      factor *= __builtin_expf(before - lse);
    }
    WriteRow<T>(out + i * shape.value.width, shape.value.dim, factor, keep, problem.out,
                rows.token[i], group, rows.head[i]);
    *stored_lse = lse;
  }
}

// The result is the same in any order of threads.
void RaiseTo(float score, float* largest) {
  float before;
  __atomic_load(largest, &before, __ATOMIC_RELAXED);
  while (score > before && !__atomic_compare_exchange(largest, &before, &score, /*weak=*/true,
                                                      __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}

void RaiseLargestScores(const AttentionProblem& problem, int64_t group, const Rows& rows,
                        const float* max) {
  if (problem.largest_scores == nullptr) return;
  float* const largest = problem.largest_scores + group * problem.group_heads;
  for (int64_t i = 0; i < rows.count; ++i) RaiseTo(max[i], largest + rows.head[i]);
}

template <typename T>
void ForwardBlock(const AttentionProblem& problem, const AttentionPiece& piece,
                  const Geometry& shape, const Rows& rows, const DropoutRows& random,
                  const BiasRows& bias, int64_t first_key, int64_t key_block, const Workspace& work,
                  Softmax* softmax) {
  const Keys keys(rows, key_block);
  const int64_t value_width = shape.value.width;
  PackKeys<T>(problem.k, piece, shape.key, keys, work.k);
  PackKeys<T>(problem.v, piece, shape.value, keys, work.v);
  MatrixProduct<false, false>(keys.padded, rows.padded, ScoreDepth{rows, keys, shape.key.dim},
                              {work.k, shape.key.width}, {work.q_transposed, kRowBlock},
                              {work.scores, kRowBlock});
  CapScores(problem, rows, keys, work.scores);
  bias.AddTo(keys, work.scores);
  HideKeys(rows, keys, work.scores);
  UpdateSoftmax(rows, keys, work.scores, softmax);
  if (problem.dropout) {
    DropoutFactors(problem, random, rows, keys, work.factor);
    MultiplyByFactors(rows, keys, work.factor, work.scores);
  }
  if (keys.first > first_key) ScaleRows(shape.value, rows, softmax->correction, work.out);
  MatrixProduct<true, true>(rows.padded, value_width, KeysSeen{rows, keys},
                            {work.scores, kRowBlock}, {work.v, value_width},
                            {work.out, value_width});
}

// Starts asking for the block behind `keys` or, behind the last one, for the first block of the
// next piece.
template <typename T>
void AskForNextBlock(const AttentionProblem& problem, const AttentionPiece& piece,
                     const Geometry& shape, const Rows& rows, const Keys& keys, int64_t calls,
                     KeysAhead<T>* ahead) {
  const int64_t next = keys.first + kKeyBlock, end = rows.KeysForSome();
  if (next < end) return ahead->Start(piece, next, Min(next + kKeyBlock, end), calls);
  ahead->Stop();
  if (piece.next == nullptr) return;
  const Geometry next_shape(problem, *piece.next);
  if (!TakesFewRows(problem, next_shape.rows)) return;
  const Rows next_rows(problem, *piece.next, next_shape, 0);
  const int64_t first = next_rows.FirstKeyForSome();
  const int64_t behind = (first / kKeyBlock + 1) * kKeyBlock;
  ahead->Start(*piece.next, first, Min(behind, next_rows.KeysForSome()), calls);
}

// q, out and the softmax have the rows of one group after another.
template <typename T, int kRows>
void ForwardFewRows(const AttentionProblem& problem, const AttentionPiece& piece,
                    const Geometry& shape, const Rows& rows, const Workspace& work) {
  const int64_t key_width = shape.key.width, value_width = shape.value.width;
  const int64_t all = (piece.end_group - piece.group) * kRows;
  Softmax softmax;
  for (int64_t i = 0; i < all; ++i) {
    const int64_t r = i % kRows;
    Widen(At<T>(problem.q, rows.token[r], piece.group + i / kRows, rows.head[r]), shape.key.dim,
          problem.scale, key_width, work.q + i * key_width);
    softmax.max[i] = -__builtin_inff();
    softmax.sum[i] = 0;
  }
  Clear(all * value_width, work.out);
  KeysAhead<T> ahead(problem, shape);
  const int64_t first_block = rows.FirstKeyForSome() / kKeyBlock;
  for (int64_t block = first_block; block * kKeyBlock < rows.KeysForSome(); ++block) {
    const Keys keys(rows, block);
    const LaneKeys seen(rows, keys, 0);  // rows are fewer than lanes
    if (seen.begin == seen.end) continue;
    const int64_t lanes = RoundUp(seen.end, kLanes) - seen.begin / kLanes * kLanes;
    AskForNextBlock(problem, piece, shape, rows, keys, lanes * (piece.end_group - piece.group),
                    &ahead);
    for (int64_t i = 0; i < all; i += kRows) {
      const int64_t token = piece.k_begin + keys.first, group = piece.group + i / kRows;
      ScoresOfFewRows<kRows>(shape.key, keys.count, seen, work.q + i * key_width,
                             RowsOfCache<T>(problem.k, token, group), &ahead, work.scores);
      for (int64_t r = 0; r < kRows; ++r) {
        softmax.correction[r] = UpdateSoftmaxOfRow(rows, keys, seen, r, work.scores + r * kKeyBlock,
                                                   softmax.max + i + r);
        softmax.sum[i + r] *= softmax.correction[r];
      }
      AddValuesOfFewRows<kRows>(shape.value, seen, work.scores,
                                RowsOfCache<T>(problem.v, token, group),
                                block > first_block ? softmax.correction : nullptr, softmax.sum + i,
                                work.out + i * value_width);
    }
  }
  for (int64_t i = 0; i < all; i += kRows) {
    const int64_t group = piece.group + i / kRows;
    StoreRows<T>(problem, group, shape, rows, softmax.max + i, softmax.sum + i,
                 work.out + i * value_width);
    RaiseLargestScores(problem, group, rows, softmax.max + i);
  }
}

template <typename T>
void ForwardManyRows(const AttentionProblem& problem, const AttentionPiece& piece,
                     const Geometry& shape, const Rows& rows, const Workspace& work) {
  const DropoutRows random(problem, piece, rows);
  const BiasRows bias(problem, piece, shape, rows);
  PackRows<T>(problem.q, piece, shape.key, rows, problem.scale, work.q);
  Softmax softmax;
  for (int64_t i = 0; i < rows.padded; ++i) {
    softmax.max[i] = -__builtin_inff();
    softmax.sum[i] = 0;
  }
  Clear(rows.padded * shape.value.width, work.out);
  Transpose(rows.padded, shape.key.width, {work.q, shape.key.width},
            {work.q_transposed, kRowBlock});
  const int64_t first_block = rows.FirstKeyForSome() / kKeyBlock;
  for (int64_t block = first_block; block * kKeyBlock < rows.KeysForSome(); ++block) {
    ForwardBlock<T>(problem, piece, shape, rows, random, bias, first_block * kKeyBlock, block, work,
                    &softmax);
  }
  StoreRows<T>(problem, piece.group, shape, rows, softmax.max, softmax.sum, work.out);
  RaiseLargestScores(problem, piece.group, rows, softmax.max);
}

template <typename T>
void ForwardPiece(const AttentionProblem& problem, const AttentionPiece& piece, float* scratch) {
  const Geometry shape(problem, piece);
  const Workspace work(shape, scratch);
  for (int64_t block = piece.first_row_block; block < piece.end_row_block; ++block) {
    const Rows rows(problem, piece, shape, block);
    if (!TakesFewRows(problem, rows.count)) {
      ForwardManyRows<T>(problem, piece, shape, rows, work);
      continue;
    }
    constexpr void (*kForward[kAttentionFewRows])(const AttentionProblem&, const AttentionPiece&,
                                                  const Geometry&, const Rows&,
                                                  const Workspace&) = {
        ForwardFewRows<T, 1>, ForwardFewRows<T, 2>, ForwardFewRows<T, 3>, ForwardFewRows<T, 4>};
    kForward[rows.count - 1](problem, piece, shape, rows, work);
  }
}

}  // namespace

void AttentionForwardPiece(const AttentionProblem& problem, const AttentionPiece& piece,
                           float* scratch) {
  switch (problem.dtype) {
    case DType::kBFloat16:
      return ForwardPiece<BFloat16>(problem, piece, scratch);
    case DType::kFloat16:
      return ForwardPiece<Float16>(problem, piece, scratch);
    default:
      return ForwardPiece<float>(problem, piece, scratch);
  }
}

}  // namespace megatron::ops::MEGATRON_ISA
