// Within a chunk, with the decays D_ij from token j to token i and the state S in front of it, what
// the tokens write is the solution u of a triangular system:
//
//   u_i + sum over j < i of A_ij u_j = beta_i (v_i - D_i S^T k_i),   A_ij = beta_i D_ij k_i k_j
//   out_i = D_i S^T q_i + sum over j <= i of P_ij u_j,               P_ij = D_ij q_i k_j
//   state behind the chunk = D S + sum over j of D_j k_j u_j^T
#include "megatron/ops/cpu/gated_delta_kernels.h"

#include "megatron/ops/cpu/chunk_tile.h"
#include "megatron/ops/cpu/loops.h"
#include "megatron/ops/cpu/vec.h"

namespace megatron::ops::MEGATRON_ISA {
namespace {

// Added to the sum of squares of a query or key, as in the published models.
constexpr float kEpsilon = 1e-6f;

struct Sizes {
  int64_t k, v;   // padded
  int64_t state;  // a state's elements

  explicit Sizes(const GatedDeltaProblem& problem)
      : k(PaddedChunk(problem.key)), v(PaddedChunk(problem.value)), state(k * v) {}
};

// The length of the rows of a matrix of which products read some columns. Lines that lie a power of
// two apart share few places of a cache.
int64_t SpreadRow(int64_t columns) { return columns + kChunkPadding; }

// What the heads of a group share of a chunk.
struct GroupTiles {
  float *q, *k;    // [rows, k]: unit vectors, queries times their scale
  float *kk, *qk;  // [rows, rows]: products of a token's key, or query, and the key of one up to it
  float *q_norm, *k_norm;  // [rows]: the reciprocals of norms
  float* transposed;       // [k, rows]
  float scale;             // the factor of queries
};

GroupTiles TakeGroup(const GatedDeltaProblem& problem, Pieces* pieces) {
  const Sizes sizes(problem);
  GroupTiles tiles;
  tiles.q = pieces->Take(kChunkTokens * sizes.k);
  tiles.k = pieces->Take(kChunkTokens * sizes.k);
  tiles.kk = pieces->Take(kChunkTokens * kChunkTokens);
  tiles.qk = pieces->Take(kChunkTokens * kChunkTokens);
  tiles.q_norm = pieces->Take(kChunkTokens);
  tiles.k_norm = pieces->Take(kChunkTokens);
  tiles.transposed = pieces->Take(kChunkTokens * sizes.k);
  tiles.scale = 1 / __builtin_sqrtf(static_cast<float>(problem.key));
  return tiles;
}

// Divides a row by its norm and multiplies it by scale.
void NormalizeRow(int64_t width, float scale, float* row) {
  Vec sum = Zero();
  for (int64_t d = 0; d < width; d += kLanes) sum = Fma(Load(row + d), Load(row + d), sum);
  ScaleAll(row, scale / __builtin_sqrtf(Sum(sum) + kEpsilon), width, row);
}

// The same for rows, kDots of them or a multiple; norm becomes the reciprocals of their norms.
void Normalize(int64_t rows, int64_t width, float scale, float* x, float* norm) {
  DotRows(x, x, rows, width, norm);
  for (int64_t i = 0; i < rows; ++i) {
    norm[i] = 1 / __builtin_sqrtf(norm[i] + kEpsilon);
    ScaleAll(x + i * width, norm[i] * scale, width, x + i * width);
  }
}

// Fills the tiles that are made of keys alone; those of queries stay as they are.
template <typename T>
void PackKeys(const GatedDeltaProblem& problem, const TokenChunk& chunk, int64_t group,
              const GroupTiles& tiles, Ahead* ahead) {
  const Sizes sizes(problem);
  const int64_t rows = PaddedChunk(chunk.count);
  Pack<T>(problem.k, chunk, group, 0, problem.key, sizes.k, tiles.k);
  Normalize(rows, sizes.k, 1, tiles.k, tiles.k_norm);
  Transpose(rows, sizes.k, {tiles.k, sizes.k}, {tiles.transposed, rows});
  Product<false>(rows, rows, LowerResult{sizes.k}, {tiles.k, sizes.k}, {tiles.transposed, rows},
                 FromZero(), {tiles.kk, rows}, ahead);
}

template <typename T>
void PackGroup(const GatedDeltaProblem& problem, const TokenChunk& chunk, int64_t group,
               const GroupTiles& tiles, Ahead* ahead) {
  const Sizes sizes(problem);
  const int64_t rows = PaddedChunk(chunk.count);
  PackKeys<T>(problem, chunk, group, tiles, ahead);
  Pack<T>(problem.q, chunk, group, 0, problem.key, sizes.k, tiles.q);
  Normalize(rows, sizes.k, tiles.scale, tiles.q, tiles.q_norm);
  Product<false>(rows, rows, LowerResult{sizes.k}, {tiles.q, sizes.k}, {tiles.transposed, rows},
                 FromZero(), {tiles.qk, rows}, ahead);
}

// One head's part of a chunk.
struct HeadTiles {
  float *a, *p;          // [rows, rows]
  float *written, *gap;  // [rows, v]: u, and v_i - D_i S^T k_i
  float* read;           // [rows, v]: S^T k_i
  float* factor;         // [rows, k or v]
  Decays decays;
  float beta[kChunkTokens];
};

HeadTiles TakeHead(const GatedDeltaProblem& problem, Pieces* pieces) {
  const Sizes sizes(problem);
  HeadTiles tiles;
  tiles.a = pieces->Take(kChunkTokens * kChunkTokens);
  tiles.p = pieces->Take(kChunkTokens * kChunkTokens);
  tiles.written = pieces->Take(kChunkTokens * sizes.v);
  tiles.gap = pieces->Take(kChunkTokens * sizes.v);
  tiles.read = pieces->Take(kChunkTokens * sizes.v);
  tiles.factor = pieces->Take(kChunkTokens * (sizes.k > sizes.v ? sizes.k : sizes.v));
  return tiles;
}

// Fills the head's tiles from those of its group and the state in front of the chunk; p only with
// queries.
template <typename T, bool kQueries>
void FillHead(const GatedDeltaProblem& problem, const TokenChunk& chunk, int64_t head,
              const GroupTiles& group_tiles, Matrix<const float> state, HeadTiles* tiles,
              Ahead* ahead) {
  const Sizes sizes(problem);
  const int64_t rows = PaddedChunk(chunk.count);
  const int64_t group = head / problem.group_heads, of_group = head % problem.group_heads;
  FillDecays<T>(problem.decay, problem.group_heads, chunk, head, &tiles->decays);
  for (int64_t i = 0; i < chunk.count; ++i)
    tiles->beta[i] = ElementOf<T>(At<T>(problem.beta, chunk.begin + i, group, of_group), 0);
  for (int64_t i = chunk.count; i < kChunkTokens; ++i) tiles->beta[i] = 0;
  for (int64_t i = 0; i < kChunkTokens; i += kLanes)
    Store(tiles->beta + i, Sigmoid(Load(tiles->beta + i)));
  for (int64_t i = chunk.count; i < kChunkTokens; ++i) tiles->beta[i] = 0;
  for (int64_t i = 0; i < rows; ++i) {
    const Vec beta = Set(tiles->beta[i]);
    for (int64_t j = 0; j <= i; j += kLanes) {
      const int64_t at = i * rows + j;
      const Vec decay = DecayBetween(tiles->decays, i, j);
      Store(tiles->a + at, InFrontOf(i, j, beta * decay * Load(group_tiles.kk + at)));
      if constexpr (kQueries) Store(tiles->p + at, decay * Load(group_tiles.qk + at));
    }
    if constexpr (kQueries) ClearBehind(rows, i, tiles->p);
  }
  Pack<T>(problem.v, chunk, group, of_group, problem.value, sizes.v, tiles->gap);
  if (!chunk.first) {
    Product<false>(rows, sizes.v, All{sizes.k}, {group_tiles.k, sizes.k}, state, FromZero(),
                   {tiles->read, sizes.v}, ahead);
    for (int64_t i = 0; i < rows; ++i) {
      const Vec decay = Set(tiles->decays.from_begin[i]);
      for (int64_t d = i * sizes.v; d < (i + 1) * sizes.v; d += kLanes)
        Store(tiles->gap + d, NegatedFma(decay, Load(tiles->read + d), Load(tiles->gap + d)));
    }
  }
  ScaleRows(tiles->gap, tiles->beta, rows, sizes.v, tiles->written);
  Solve</*kUpper=*/false>(rows, sizes.v, tiles->a, tiles->written);
}

// Writes the state behind the chunk from that in front of it, which may be the same memory.
void CarryState(const Sizes& sizes, const TokenChunk& chunk, const GroupTiles& group_tiles,
                const HeadTiles& tiles, Matrix<const float> before, Matrix<float> behind,
                Ahead* ahead) {
  const int64_t rows = PaddedChunk(chunk.count);
  ScaleRows(group_tiles.k, tiles.decays.to_end, rows, sizes.k, tiles.factor);
  if (chunk.first) before.data = nullptr;
  CarryOuterProducts(rows, {tiles.factor, sizes.k}, {tiles.written, sizes.v}, tiles.decays.whole,
                     before, behind, ahead);
}

// What the heads of a group share of the inputs, or of the gradients.
struct GroupOperands {
  const ChunkOperand &q, &k, &beta, &decay;
};
template <typename T>
void FetchKeys(const GatedDeltaProblem& problem, const GroupOperands& operands,
               const TokenChunk& chunk, int64_t group, Ahead* ahead) {
  FetchRows<T>(operands.k, chunk, group, 0, problem.key, ahead);
  FetchRows<T>(operands.beta, chunk, group, 0, problem.group_heads, ahead);
  FetchRows<T>(operands.decay, chunk, group, 0, problem.group_heads, ahead);
}
template <typename T>
void FetchGroup(const GatedDeltaProblem& problem, const GroupOperands& operands,
                const TokenChunk& chunk, int64_t group, Ahead* ahead) {
  FetchKeys<T>(problem, operands, chunk, group, ahead);
  FetchRows<T>(operands.q, chunk, group, 0, problem.key, ahead);
}

template <typename T>
void Forward(const T*, const GatedDeltaProblem& problem, const HeadsOfSequence& part,
             float* scratch) {
  const Sizes sizes(problem);
  const int64_t group = part.first_head / problem.group_heads;
  Pieces pieces(scratch);
  const GroupTiles group_tiles = TakeGroup(problem, &pieces);
  HeadTiles tiles = TakeHead(problem, &pieces);
  float* const out = pieces.Take(kChunkTokens * sizes.v);
  const int64_t state_row = SpreadRow(sizes.v);
  float* const states = pieces.Take(problem.group_heads * sizes.k * state_row);
  Ahead ahead;
  for (int64_t at = part.begin; at < part.end; at += kChunkTokens) {
    const TokenChunk chunk = ChunkAt(part.begin, part.end, at);
    const TokenChunk next_chunk = ChunkAt(part.begin, part.end, at + kChunkTokens);
    const int64_t rows = PaddedChunk(chunk.count);
    PackGroup<T>(problem, chunk, group, group_tiles, &ahead);
    for (int64_t head = part.first_head; head < part.end_head; ++head) {
      const bool in_chunk = head + 1 < part.end_head;
      if (in_chunk || !chunk.last) {
        const TokenChunk& next = in_chunk ? chunk : next_chunk;
        const int64_t of_group = (in_chunk ? head + 1 : part.first_head) % problem.group_heads;
        FetchRows<T>(problem.v, next, group, of_group, problem.value, &ahead);
        FetchRows<T>(problem.out, next, group, of_group, problem.value, &ahead);
      }
      if (head == part.first_head && !chunk.last)
        FetchGroup<T>(problem, {problem.q, problem.k, problem.beta, problem.decay.raw}, next_chunk,
                      group, &ahead);
      const Matrix<float> state = {states + (head - part.first_head) * sizes.k * state_row,
                                   state_row};
      const Matrix<const float> before = {state.data, state.stride};
      FillHead<T, /*kQueries=*/true>(problem, chunk, head, group_tiles, before, &tiles, &ahead);
      const Matrix<const float> p = {tiles.p, rows}, written = {tiles.written, sizes.v};
      if (chunk.first) {
        Product<false>(rows, sizes.v, LowerLeft(), p, written, FromZero(), {out, sizes.v}, &ahead);
      } else {
        Product<false>(rows, sizes.v, All{sizes.k}, {group_tiles.q, sizes.k}, before, FromZero(),
                       {out, sizes.v}, &ahead);
        Product<false>(rows, sizes.v, LowerLeft(), p, written,
                       FromScaledRows{tiles.decays.from_begin, {out, sizes.v}}, {out, sizes.v},
                       &ahead);
      }
      for (int64_t i = 0; i < chunk.count; ++i)
        Narrow(out + i * sizes.v, problem.value, 1,
               At<T>(problem.out, chunk.begin + i, group, head % problem.group_heads));
      if (!chunk.last) CarryState(sizes, chunk, group_tiles, tiles, before, state, &ahead);
    }
  }
}

// Goes through one token with one head, whose state has rows of the head's own width. q and k are
// unit vectors, q times its scale.
template <typename T>
void ContinueHead(const GatedDeltaProblem& problem, int64_t token, int64_t head, const float* q,
                  const float* k, float* state, Pieces pieces) {
  const Sizes sizes(problem);
  const int64_t group = head / problem.group_heads, of_group = head % problem.group_heads;
  float* const written = pieces.Take(sizes.v);  // at first v
  float* const read = pieces.Take(sizes.v);
  float* const out = pieces.Take(sizes.v);
  Widen(At<T>(problem.v, token, group, of_group), problem.value, 1, sizes.v, written);
  const Vec decay = Set(DecayAt<T>(problem.decay, token, group, of_group, head).decay);
  const Vec beta = Sigmoid(Set(ElementOf<T>(At<T>(problem.beta, token, group, of_group), 0)));
  Clear(sizes.v, read);
  Clear(sizes.v, out);
  for (int64_t i = 0; i < problem.key; ++i) {
    const Vec key = Set(k[i]);
    float* const row = state + i * problem.value;
    ForEachVec(problem.value, [&](auto access, int64_t d) {
      const Vec s = decay * access.load(row + d);
      access.store(row + d, s);
      Store(read + d, Fma(key, s, Load(read + d)));
    });
  }
  for (int64_t d = 0; d < sizes.v; d += kLanes)
    Store(written + d, beta * (Load(written + d) - Load(read + d)));
  for (int64_t i = 0; i < problem.key; ++i) {
    const Vec key = Set(k[i]), query = Set(q[i]);
    float* const row = state + i * problem.value;
    ForEachVec(problem.value, [&](auto access, int64_t d) {
      const Vec s = Fma(key, Load(written + d), access.load(row + d));
      access.store(row + d, s);
      Store(out + d, Fma(query, s, Load(out + d)));
    });
  }
  Narrow(out, problem.value, 1, At<T>(problem.out, token, group, of_group));
}

template <typename T>
void Continue(const T*, const GatedDeltaProblem& problem, const StatePortion& portion,
              int64_t group, float* scratch) {
  const Sizes sizes(problem);
  const int64_t size = problem.key * problem.value;
  Pieces pieces(scratch);
  float* const q = pieces.Take(sizes.k);
  float* const k = pieces.Take(sizes.k);
  float* const states = portion.states + group * problem.group_heads * size;
  if (portion.anew) ClearState(problem.group_heads * size, states);
  const float scale = 1 / __builtin_sqrtf(static_cast<float>(problem.key));
  for (int64_t t = portion.begin; t < portion.end; ++t) {
    Widen(At<T>(problem.q, t, group, 0), problem.key, 1, sizes.k, q);
    Widen(At<T>(problem.k, t, group, 0), problem.key, 1, sizes.k, k);
    NormalizeRow(sizes.k, scale, q);
    NormalizeRow(sizes.k, 1, k);
    for (int64_t of_group = 0; of_group < problem.group_heads; ++of_group)
      ContinueHead<T>(problem, t, group * problem.group_heads + of_group, q, k,
                      states + of_group * size, pieces);
  }
}

// Finds the states in front of the chunks but the first.
template <typename T>
void FindStates(const GatedDeltaProblem& problem, const HeadsOfSequence& part,
                const GroupTiles& group_tiles, HeadTiles* tiles) {
  const Sizes sizes(problem);
  const int64_t group = part.first_head / problem.group_heads;
  Ahead ahead;
  for (int64_t at = part.begin; at + kChunkTokens < part.end; at += kChunkTokens) {
    const TokenChunk chunk = ChunkAt(part.begin, part.end, at);
    const TokenChunk next_chunk = ChunkAt(part.begin, part.end, at + kChunkTokens);
    PackKeys<T>(problem, chunk, group, group_tiles, &ahead);
    for (int64_t head = part.first_head; head < part.end_head; ++head) {
      const bool in_chunk = head + 1 < part.end_head;
      const TokenChunk& of_next = in_chunk ? chunk : next_chunk;
      const int64_t next = in_chunk ? head + 1 : part.first_head;
      FetchRows<T>(problem.v, of_next, group, next % problem.group_heads, problem.value, &ahead);
      if (!of_next.last)
        FetchState(StateAt(problem, sizes.state, NextPlaceOf(of_next), next), sizes.state, &ahead);
      if (head == part.first_head)
        FetchKeys<T>(problem, {problem.q, problem.k, problem.beta, problem.decay.raw}, next_chunk,
                     group, &ahead);
      const Matrix<const float> before = {
          chunk.first ? nullptr : StateAt(problem, sizes.state, PlaceOf(chunk), head), sizes.v};
      FillHead<T, /*kQueries=*/false>(problem, chunk, head, group_tiles, before, tiles, &ahead);
      CarryState(sizes, chunk, group_tiles, *tiles, before,
                 {StateAt(problem, sizes.state, NextPlaceOf(chunk), head), sizes.v}, &ahead);
    }
  }
}

// The gradients of a group's queries and keys in a chunk, as they are summed up over its heads.
struct GroupGradients {
  float *dq, *dk;    // [rows, k]
  float *dkk, *dqk;  // [rows, rows]
};

// The gradients of a head's decays and betas in a chunk.
struct StepGradients {
  float log_decay[kChunkTokens];  // the gradient of Decays::log_decay
  float beta[kChunkTokens];
  float whole;  // the gradient of the logarithm of the decay over the chunk
};

// Adds what comes of the products within the chunk, from the gradients of a (with the other sign)
// and of p.
void BackwardWithin(const GroupTiles& group_tiles, const HeadTiles& tiles, int64_t rows,
                    const float* minus_da, const float* dp, const GroupGradients& group_gradients,
                    StepGradients* gradients) {
  for (int64_t i = 0; i < rows; ++i) {
    Vec of_decay = Zero(), of_beta = Zero();
    const Vec beta = Set(tiles.beta[i]);
    for (int64_t j = 0; j <= i; j += kLanes) {
      const int64_t at = i * rows + j;
      const Vec decay = DecayBetween(tiles.decays, i, j);
      const Vec da = InFrontOf(i, j, Zero() - Load(minus_da + at)) * decay;
      const Vec dqk = Load(dp + at) * decay;
      const Vec times_kk = da * Load(group_tiles.kk + at);
      const Vec of_both = Fma(times_kk, beta, dqk * Load(group_tiles.qk + at));
      Store(group_gradients.dkk + at, Fma(da, beta, Load(group_gradients.dkk + at)));
      Store(group_gradients.dqk + at, Load(group_gradients.dqk + at) + dqk);
      of_beta = of_beta + times_kk;
      const Vec decaying = InFrontOf(i, j, of_both);
      of_decay = of_decay + decaying;
      Store(gradients->log_decay + j, Load(gradients->log_decay + j) - decaying);
    }
    gradients->beta[i] += Sum(of_beta);
    gradients->log_decay[i] += Sum(of_decay);
  }
}

// Writes the gradients of a head's betas and raw decays.
template <typename T>
void WriteSteps(const GatedDeltaProblem& problem, const TokenChunk& chunk, int64_t head,
                const HeadTiles& tiles, const StepGradients& gradients) {
  const int64_t heads = problem.groups * problem.group_heads;
  const int64_t group = head / problem.group_heads, of_group = head % problem.group_heads;
  float of_raw[kChunkTokens];
  for (int64_t i = 0; i < kChunkTokens; i += kLanes)
    Store(of_raw + i, Sigmoid(Load(tiles.decays.raw + i)));
  // The decay up to a token has the steps up to it.
  float behind = gradients.whole;
  for (int64_t i = chunk.count - 1; i >= 0; --i) {
    behind += gradients.log_decay[i];
    const int64_t token = chunk.begin + i;
    const float draw = -tiles.decays.rate * behind * of_raw[i];
    float* const sums = problem.token_sums + 2 * (token * heads + head);
    sums[0] = draw;
    sums[1] = -tiles.decays.rate * tiles.decays.step[i] * behind;
    StoreElement<T>(problem.draw, token, group, of_group, draw);
    StoreElement<T>(problem.dbeta, token, group, of_group,
                    gradients.beta[i] * tiles.beta[i] * (1 - tiles.beta[i]));
  }
}

// Writes the gradients of queries or keys from those of their unit vectors times `scale`.
template <typename T>
void WriteUnnormalized(const TokenChunk& chunk, int64_t group, int64_t width, int64_t padded,
                       float scale, const float* unit, const float* norm, float* dunit,
                       const ChunkOperand& dx) {
  float dots[kChunkTokens];
  DotRows(dunit, unit, PaddedChunk(chunk.count), padded, dots);
  for (int64_t i = 0; i < chunk.count; ++i) {
    float* const row = dunit + i * padded;
    const float along = dots[i] / scale;
    for (int64_t d = 0; d < padded; d += kLanes) {
      const Vec gradient =
          NegatedFma(Set(along), Load(unit + i * padded + d), Set(scale) * Load(row + d));
      Store(row + d, gradient);
    }
    Narrow(row, width, norm[i], At<T>(dx, chunk.begin + i, group, 0));
  }
}

template <typename T>
void Backward(const T*, const GatedDeltaProblem& problem, const HeadsOfSequence& part,
              float* scratch) {
  const Sizes sizes(problem);
  const int64_t begin = part.begin, end = part.end;
  const int64_t group = part.first_head / problem.group_heads;
  const int64_t k = sizes.k, v = sizes.v, size = sizes.state;
  Pieces pieces(scratch);
  const GroupTiles group_tiles = TakeGroup(problem, &pieces);
  HeadTiles tiles = TakeHead(problem, &pieces);
  float* const dstates = pieces.Take(problem.group_heads * size);
  FindStates<T>(problem, part, group_tiles, &tiles);

  GroupGradients group_gradients;
  group_gradients.dq = pieces.Take(kChunkTokens * k);
  group_gradients.dk = pieces.Take(kChunkTokens * k);
  group_gradients.dkk = pieces.Take(kChunkTokens * kChunkTokens);
  group_gradients.dqk = pieces.Take(kChunkTokens * kChunkTokens);
  float* const dout = pieces.Take(kChunkTokens * v);
  float* const dwritten = pieces.Take(kChunkTokens * v);
  float* const scaled = pieces.Take(kChunkTokens * v);
  float* const through = pieces.Take(kChunkTokens * k);
  float* const minus_da = pieces.Take(kChunkTokens * kChunkTokens);
  float* const dp = pieces.Take(kChunkTokens * kChunkTokens);
  float* const transposed = pieces.Take(kChunkTokens * v);
  const Matrix<float> transposed_state = {pieces.Take(v * SpreadRow(k)), SpreadRow(k)};
  const Matrix<const float> of_state = {transposed_state.data, transposed_state.stride};
  // Of a head, the gradient of the state behind the chunk, and then of that in front of it.
  Clear(problem.group_heads * size, dstates);
  const int64_t chunks = (end - begin + kChunkTokens - 1) / kChunkTokens;
  const auto chunk_of = [&](int64_t c) { return ChunkAt(begin, end, begin + c * kChunkTokens); };
  Ahead ahead;
  for (int64_t c = chunks - 1; c >= 0; --c) {
    const TokenChunk chunk = chunk_of(c);
    const int64_t rows = PaddedChunk(chunk.count);
    PackGroup<T>(problem, chunk, group, group_tiles, &ahead);
    Clear(rows * k, group_gradients.dq);
    Clear(rows * k, group_gradients.dk);
    Clear(rows * rows, group_gradients.dkk);
    Clear(rows * rows, group_gradients.dqk);
    for (int64_t of_group = 0; of_group < problem.group_heads; ++of_group) {
      const int64_t head = group * problem.group_heads + of_group;
      const bool in_chunk = of_group + 1 < problem.group_heads;
      if (in_chunk || c > 0) {
        const TokenChunk next = in_chunk ? chunk : chunk_of(c - 1);
        const int64_t next_head = in_chunk ? of_group + 1 : 0;
        FetchRows<T>(problem.v, next, group, next_head, problem.value, &ahead);
        FetchRows<T>(problem.dout, next, group, next_head, problem.value, &ahead);
        FetchRows<T>(problem.dv, next, group, next_head, problem.value, &ahead);
        if (!next.first)
          FetchState(StateAt(problem, size, PlaceOf(next), head - of_group + next_head), size,
                     &ahead);
      }
      if (of_group == 0) {
        FetchGroup<T>(problem, {problem.dq, problem.dk, problem.dbeta, problem.draw}, chunk, group,
                      &ahead);
        if (c > 0)
          FetchGroup<T>(problem, {problem.q, problem.k, problem.beta, problem.decay.raw},
                        chunk_of(c - 1), group, &ahead);
      }
      float* const dstate = dstates + of_group * size;
      const float* const state =
          chunk.first ? nullptr : StateAt(problem, size, PlaceOf(chunk), head);
      FillHead<T, /*kQueries=*/true>(problem, chunk, head, group_tiles, {state, v}, &tiles, &ahead);
      const Decays& decays = tiles.decays;
      StepGradients gradients;
      Clear(kChunkTokens, gradients.log_decay);
      Clear(kChunkTokens, gradients.beta);
      gradients.whole = 0;
      Pack<T>(problem.dout, chunk, group, of_group, problem.value, v, dout);

      // The gradient of u, and through the system that of its right side.
      Product<true>(rows, v, LowerLeftTransposed{rows}, {tiles.p, rows}, {dout, v}, FromZero(),
                    {dwritten, v}, &ahead);
      if (!chunk.last) {
        ScaleRows(group_tiles.k, decays.to_end, rows, k, tiles.factor);
        Product<false>(rows, v, All{k}, {tiles.factor, k}, {dstate, v}, FromMatrix{{dwritten, v}},
                       {dwritten, v}, &ahead);
      }
      Solve</*kUpper=*/true>(rows, v, tiles.a, dwritten);
      Transpose(rows, v, {tiles.written, v}, {transposed, rows});
      Product<false>(rows, rows, LowerResult{v}, {dwritten, v}, {transposed, rows}, FromZero(),
                     {minus_da, rows}, &ahead);
      Product<false>(rows, rows, LowerResult{v}, {dout, v}, {transposed, rows}, FromZero(),
                     {dp, rows}, &ahead);
      BackwardWithin(group_tiles, tiles, rows, minus_da, dp, group_gradients, &gradients);
      float dots[kChunkTokens];
      DotRows(dwritten, tiles.gap, rows, v, dots);
      for (int64_t i = 0; i < rows; ++i) gradients.beta[i] += dots[i];
      ScaleRows(dwritten, tiles.beta, rows, v, dwritten);  // the gradient of v
      for (int64_t i = 0; i < chunk.count; ++i)
        Narrow(dwritten + i * v, problem.value, 1,
               At<T>(problem.dv, chunk.begin + i, group, of_group));

      if (!chunk.last) {
        if (!chunk.first) gradients.whole += decays.whole * DotAll(dstate, state, size);
        Transpose(k, v, {dstate, v}, transposed_state);
        ScaleRows(tiles.written, decays.to_end, rows, v, scaled);
        Product<false>(rows, k, All{v}, {scaled, v}, of_state, FromZero(), {through, k}, &ahead);
        DotRows(group_tiles.k, through, rows, k, dots);
        for (int64_t i = 0; i < rows; ++i) {
          gradients.log_decay[i] -= dots[i];
          gradients.whole += dots[i];
        }
        AddAll(through, rows * k, group_gradients.dk);
      }
      if (!chunk.first) {
        Transpose(k, v, {state, v}, transposed_state);
        // Through what is read at keys, with the other sign.
        float minus_decay[kChunkTokens];
        ScaleAll(decays.from_begin, -1, kChunkTokens, minus_decay);
        ScaleRows(dwritten, minus_decay, rows, v, scaled);
        DotRows(scaled, tiles.read, rows, v, dots);
        for (int64_t i = 0; i < rows; ++i) gradients.log_decay[i] += dots[i];
        Product<false>(rows, k, All{v}, {scaled, v}, of_state, FromMatrix{{group_gradients.dk, k}},
                       {group_gradients.dk, k}, &ahead);
        // There is no gradient yet behind the last chunk.
        const FromScaled behind = {chunk.last ? 0 : decays.whole, {dstate, v}};
        Product<true>(k, v, All{rows}, {group_tiles.k, k}, {scaled, v}, behind, {dstate, v},
                      &ahead);
        // And at queries.
        ScaleRows(dout, decays.from_begin, rows, v, scaled);
        Product<false>(rows, k, All{v}, {scaled, v}, of_state, FromZero(), {through, k}, &ahead);
        DotRows(group_tiles.q, through, rows, k, dots);
        for (int64_t i = 0; i < rows; ++i) gradients.log_decay[i] += dots[i];
        AddAll(through, rows * k, group_gradients.dq);
        Product<true>(k, v, All{rows}, {group_tiles.q, k}, {scaled, v}, FromMatrix{{dstate, v}},
                      {dstate, v}, &ahead);
      }
      WriteSteps<T>(problem, chunk, head, tiles, gradients);
    }
    const Matrix<const float> dkk = {group_gradients.dkk, rows}, dqk = {group_gradients.dqk, rows};
    const Matrix<const float> queries = {group_tiles.q, k}, keys = {group_tiles.k, k};
    const Matrix<float> dq = {group_gradients.dq, k}, dk = {group_gradients.dk, k};
    Product<false>(rows, k, LowerLeft(), dkk, keys, FromMatrix{{dk.data, dk.stride}}, dk, &ahead);
    Product<true>(rows, k, LowerLeftTransposed{rows}, dkk, keys, FromMatrix{{dk.data, dk.stride}},
                  dk, &ahead);
    Product<true>(rows, k, LowerLeftTransposed{rows}, dqk, queries,
                  FromMatrix{{dk.data, dk.stride}}, dk, &ahead);
    Product<false>(rows, k, LowerLeft(), dqk, keys, FromMatrix{{dq.data, dq.stride}}, dq, &ahead);
    WriteUnnormalized<T>(chunk, group, problem.key, k, group_tiles.scale, group_tiles.q,
                         group_tiles.q_norm, group_gradients.dq, problem.dq);
    WriteUnnormalized<T>(chunk, group, problem.key, k, 1, group_tiles.k, group_tiles.k_norm,
                         group_gradients.dk, problem.dk);
  }
}

}  // namespace

void GatedDeltaForward(const GatedDeltaProblem& problem, const HeadsOfSequence& part,
                       float* scratch) {
  const FlushDenormals flush;
  WithType(problem.dtype, [&](auto* type) { Forward(type, problem, part, scratch); });
}

void GatedDeltaBackward(const GatedDeltaProblem& problem, const HeadsOfSequence& part,
                        float* scratch) {
  const FlushDenormals flush;
  WithType(problem.dtype, [&](auto* type) { Backward(type, problem, part, scratch); });
}

void GatedDeltaContinue(const GatedDeltaProblem& problem, const StatePortion& portion,
                        int64_t group, float* scratch) {
  const FlushDenormals flush;
  WithType(problem.dtype, [&](auto* type) { Continue(type, problem, portion, group, scratch); });
}

}  // namespace megatron::ops::MEGATRON_ISA
