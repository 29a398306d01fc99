#include "megatron/ops/cpu/attention_bias.h"
#include "megatron/ops/cpu/attention_blocks.h"
#include "megatron/ops/cpu/attention_dropout.h"
#include "megatron/ops/cpu/attention_kernels.h"
#include "megatron/ops/cpu/vec.h"

namespace megatron::ops::MEGATRON_ISA {
namespace {

struct Workspace {
  float *q, *q_transposed, *dq;         // [kRowBlock, key width], the transpose
  float *dout, *dout_transposed, *out;  // [kRowBlock, value width], the transpose
  float *k, *v;                         // [kKeyBlock, width]
  float *p, *ds, *factor;               // [kKeyBlock, kRowBlock]
  float *dk, *dv;                       // [keys of the piece, width]

  Workspace(const AttentionPiece& piece, const Geometry& shape, float* scratch) {
    for (float** tile : {&q, &q_transposed, &dq}) {
      *tile = scratch;
      scratch += kRowBlock * shape.key.width;
    }
    for (float** tile : {&dout, &dout_transposed, &out}) {
      *tile = scratch;
      scratch += kRowBlock * shape.value.width;
    }
    k = scratch;
    v = k + kKeyBlock * shape.key.width;
    p = v + kKeyBlock * shape.value.width;
    ds = p + kKeyBlock * kRowBlock;
    factor = ds + kKeyBlock * kRowBlock;
    dk = factor + kKeyBlock * kRowBlock;
    dv = dk + (piece.end_key_block - piece.first_key_block) * kKeyBlock * shape.key.width;
  }
};

struct RowStatistics {
  float lse[kRowBlock];
  float delta[kRowBlock];  // dout . out
};

template <typename T>
void LoadRows(const AttentionProblem& problem, const AttentionPiece& piece, const Geometry& shape,
              const Rows& rows, const Workspace& work, RowStatistics* statistics) {
  const int64_t width = shape.key.width, value_width = shape.value.width;
  PackRows<T>(problem.q, piece, shape.key, rows, problem.scale, work.q);
  Transpose(rows.padded, width, {work.q, width}, {work.q_transposed, kRowBlock});
  PackRows<T>(problem.dout, piece, shape.value, rows, 1, work.dout);
  Transpose(rows.padded, value_width, {work.dout, value_width}, {work.dout_transposed, kRowBlock});
  PackRows<T>(problem.out, piece, shape.value, rows, 1, work.out);
  for (int64_t i = 0; i < rows.padded; ++i) {
    Vec delta = Zero();
    for (int64_t d = 0; d < value_width; d += kLanes) {
      delta =
          Fma(Load(work.dout + i * value_width + d), Load(work.out + i * value_width + d), delta);
    }
    statistics->delta[i] = Sum(delta);
    // If a row sees no key, lse is 0, and its probabilities are exp(-inf - 0) = 0.
    statistics->lse[i] =
        rows.SeesNone(i) ? 0 : *At<float>(problem.lse, rows.token[i], piece.group, rows.head[i]);
  }
}

// A sink's value is zero, and so is the gradient of its probability.
void SumSinks(const AttentionProblem& problem, const AttentionPiece& piece, const Rows& rows,
              const RowStatistics& statistics, int64_t row_block) {
  if (problem.sink_sums == nullptr) return;
  float* const sums =
      problem.sink_sums + (piece.row_blocks_before + row_block) * problem.group_heads;
  for (int64_t head = 0; head < problem.group_heads; ++head) sums[head] = 0;
  for (int64_t i = 0; i < rows.count; ++i) {
    const float lse = *At<float>(problem.lse, rows.token[i], piece.group, rows.head[i]);
    const float sink = problem.sink[piece.group * problem.group_heads + rows.head[i]];
    sums[rows.head[i]] -= __builtin_expf(sink - lse) * statistics.delta[i];
  }
}

// p becomes the probabilities (after dropout, if there is any), and ds, the gradient of the
// probabilities, becomes the gradient of the scores. Both are zero where no lane sees the key, and
// in the rows of the tiles beyond the keys, since dk and dv sum over them.
void DifferentiateSoftmax(const AttentionProblem& problem, const Rows& rows, const Keys& keys,
                          const RowStatistics& statistics, const Workspace& work) {
  for (int64_t i = 0; i < rows.padded; i += kLanes) {
    const LaneKeys seen(rows, keys, i);
    const Vec lse = Load(statistics.lse + i), delta = Load(statistics.delta + i);
    for (int64_t j = seen.begin; j < seen.end; ++j) {
      const int64_t at = j * kRowBlock + i;
      const Vec score = Load(work.p + at);
      const Vec p = Exp(score - lse);
      const Vec factor = problem.dropout ? Load(work.factor + at) : Set(1);
      Store(work.p + at, p * factor);
      const Vec ds = p * (Load(work.ds + at) * factor - delta);
      Store(work.ds + at, problem.softcap > 0 ? ds * SoftCapSlope(score, problem.softcap) : ds);
    }
    const auto clear = [&](int64_t from, int64_t to) {
      for (int64_t j = from; j < to; ++j) {
        Store(work.p + j * kRowBlock + i, Zero());
        Store(work.ds + j * kRowBlock + i, Zero());
      }
    };
    clear(0, seen.begin);
    clear(seen.end, keys.padded);
  }
}

template <typename T>
void BackwardBlock(const AttentionProblem& problem, const AttentionPiece& piece,
                   const Geometry& shape, const Rows& rows, const DropoutRows& random,
                   const BiasRows& bias, const RowStatistics& statistics, int64_t key_block,
                   const Workspace& work, float* bias_sums) {
  const Keys keys(rows, key_block);
  const int64_t width = shape.key.width, value_width = shape.value.width;
  PackKeys<T>(problem.k, piece, shape.key, keys, work.k);
  PackKeys<T>(problem.v, piece, shape.value, keys, work.v);
  MatrixProduct<false, false>(keys.padded, rows.padded, ScoreDepth{rows, keys, shape.key.dim},
                              {work.k, width}, {work.q_transposed, kRowBlock}, {work.p, kRowBlock});
  MatrixProduct<false, false>(keys.padded, rows.padded, ScoreDepth{rows, keys, shape.value.dim},
                              {work.v, value_width}, {work.dout_transposed, kRowBlock},
                              {work.ds, kRowBlock});
  CapScores(problem, rows, keys, work.p);
  bias.AddTo(keys, work.p);
  HideKeys(rows, keys, work.p);
  if (problem.dropout) DropoutFactors(problem, random, rows, keys, work.factor);
  DifferentiateSoftmax(problem, rows, keys, statistics, work);
  if (bias_sums != nullptr) bias.Sum(keys, work.ds, bias_sums);
  if (piece.wants_dq) {
    MatrixProduct<true, true>(rows.padded, width, KeysSeen{rows, keys}, {work.ds, kRowBlock},
                              {work.k, width}, {work.dq, width});
  }
  if (piece.wants_dkv) {
    const int64_t at = (key_block - piece.first_key_block) * kKeyBlock;
    const RowsSeeing seeing(rows, keys);
    MatrixProduct<false, true>(keys.padded, width, seeing, {work.ds, kRowBlock}, {work.q, width},
                               {work.dk + at * width, width});
    MatrixProduct<false, true>(keys.padded, value_width, seeing, {work.p, kRowBlock},
                               {work.dout, value_width}, {work.dv + at * value_width, value_width});
  }
}

template <typename T>
void BackwardRows(const AttentionProblem& problem, const AttentionPiece& piece,
                  const Geometry& shape, int64_t row_block, const Workspace& work) {
  const Rows rows(problem, piece, shape, row_block);
  const int64_t visible_blocks = (rows.KeysForSome() + kKeyBlock - 1) / kKeyBlock;
  const int64_t end_block = Min(piece.end_key_block, visible_blocks);
  const int64_t first_block =
      Clamp(rows.FirstKeyForSome() / kKeyBlock, piece.first_key_block, piece.end_key_block);
  if (end_block <= first_block && !piece.wants_dq) return;
  const DropoutRows random(problem, piece, rows);
  const BiasRows bias(problem, piece, shape, rows);
  float* const bias_sums = bias.StartSums(piece, row_block);
  RowStatistics statistics;
  LoadRows<T>(problem, piece, shape, rows, work, &statistics);
  if (piece.wants_dq) SumSinks(problem, piece, rows, statistics, row_block);
  Clear(rows.padded * shape.key.width, work.dq);
  for (int64_t block = first_block; block < end_block; ++block) {
    BackwardBlock<T>(problem, piece, shape, rows, random, bias, statistics, block, work, bias_sums);
  }
  if (!piece.wants_dq) return;
  for (int64_t i = 0; i < rows.count; ++i) {
    WriteRow<T>(work.dq + i * shape.key.width, shape.key.dim, problem.scale, problem.add_to_queries,
                problem.dq, rows.token[i], piece.group, rows.head[i]);
  }
}

template <typename T>
void BackwardPiece(const AttentionProblem& problem, const AttentionPiece& piece, float* scratch) {
  const Geometry shape(problem, piece);
  const Workspace work(piece, shape, scratch);
  const int64_t first_key = piece.first_key_block * kKeyBlock;
  const int64_t blocks = piece.end_key_block - piece.first_key_block;
  if (piece.wants_dkv) Clear(blocks * kKeyBlock * (shape.key.width + shape.value.width), work.dk);
  const int64_t count = Min(blocks * kKeyBlock, piece.k_length - first_key);
  const SeeingRowBlocks row_blocks(problem, piece, shape, first_key, first_key + count);
  for (int64_t block = row_blocks.first; block < row_blocks.end; ++block) {
    BackwardRows<T>(problem, piece, shape, block, work);
  }
  if (!piece.wants_dkv) return;
  for (int64_t j = 0; j < count; ++j) {
    const int64_t token = piece.k_begin + first_key + j;
    WriteRow<T>(work.dk + j * shape.key.width, shape.key.dim, 1, problem.add_to_keys, problem.dk,
                token, piece.group, 0);
    WriteRow<T>(work.dv + j * shape.value.width, shape.value.dim, 1, problem.add_to_keys,
                problem.dv, token, piece.group, 0);
  }
}

}  // namespace

void AttentionBackwardPiece(const AttentionProblem& problem, const AttentionPiece& piece,
                            float* scratch) {
  switch (problem.dtype) {
    case DType::kBFloat16:
      return BackwardPiece<BFloat16>(problem, piece, scratch);
    case DType::kFloat16:
      return BackwardPiece<Float16>(problem, piece, scratch);
    default:
      return BackwardPiece<float>(problem, piece, scratch);
  }
}

}  // namespace megatron::ops::MEGATRON_ISA
