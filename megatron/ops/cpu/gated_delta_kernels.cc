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
  int64_t k, v;  // padded

  explicit Sizes(const GatedDeltaProblem& problem)
      : k(PaddedChunk(problem.key)), v(PaddedChunk(problem.value)) {}
};

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

void Normalize(int64_t rows, int64_t width, float scale, float* x, float* norm) {
  for (int64_t i = 0; i < rows; ++i) {
    float* const row = x + i * width;
    norm[i] = 1 / __builtin_sqrtf(DotProduct(row, row, width) + kEpsilon);
    ScaleAll(norm[i] * scale, width, row);
  }
}

template <typename T>
void PackGroup(const GatedDeltaProblem& problem, const TokenChunk& chunk, int64_t group,
               const GroupTiles& tiles) {
  const Sizes sizes(problem);
  const int64_t rows = PaddedChunk(chunk.count);
  Pack<T>(problem.q, chunk, group, 0, problem.key, sizes.k, tiles.q);
  Pack<T>(problem.k, chunk, group, 0, problem.key, sizes.k, tiles.k);
  Normalize(rows, sizes.k, tiles.scale, tiles.q, tiles.q_norm);
  Normalize(rows, sizes.k, 1, tiles.k, tiles.k_norm);
  Transpose(rows, sizes.k, {tiles.k, sizes.k}, {tiles.transposed, rows});
  MatrixProduct<false, false>(rows, rows, LowerResult{sizes.k}, {tiles.k, sizes.k},
                              {tiles.transposed, rows}, {tiles.kk, rows});
  MatrixProduct<false, false>(rows, rows, LowerResult{sizes.k}, {tiles.q, sizes.k},
                              {tiles.transposed, rows}, {tiles.qk, rows});
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

// Solves (1 + a) x = x in place, with a zero on and behind the diagonal.
void SolveLower(int64_t rows, int64_t width, const float* a, float* x) {
  for (int64_t i = 1; i < rows; ++i) {
    for (int64_t d = 0; d < width; d += kLanes) {
      Vec sum = Load(x + i * width + d);
      for (int64_t j = 0; j < i; ++j)
        sum = NegatedFma(Set(a[i * rows + j]), Load(x + j * width + d), sum);
      Store(x + i * width + d, sum);
    }
  }
}

// The same with the transpose of a.
void SolveUpper(int64_t rows, int64_t width, const float* a, float* x) {
  for (int64_t i = rows - 2; i >= 0; --i) {
    for (int64_t d = 0; d < width; d += kLanes) {
      Vec sum = Load(x + i * width + d);
      for (int64_t j = i + 1; j < rows; ++j)
        sum = NegatedFma(Set(a[j * rows + i]), Load(x + j * width + d), sum);
      Store(x + i * width + d, sum);
    }
  }
}

// Fills the head's tiles from those of its group and the state in front of the chunk.
template <typename T>
void FillHead(const GatedDeltaProblem& problem, const TokenChunk& chunk, int64_t head,
              const GroupTiles& group_tiles, const float* state, HeadTiles* tiles) {
  const Sizes sizes(problem);
  const int64_t rows = PaddedChunk(chunk.count);
  const int64_t group = head / problem.group_heads, of_group = head % problem.group_heads;
  FillDecays<T>(problem.decay, problem.group_heads, chunk, head, &tiles->decays);
  for (int64_t i = 0; i < kChunkTokens; ++i) tiles->beta[i] = 0;
  for (int64_t i = 0; i < chunk.count; ++i)
    tiles->beta[i] =
        Logistic(ElementOf<T>(At<T>(problem.beta, chunk.begin + i, group, of_group), 0));
  for (int64_t i = 0; i < rows; ++i) {
    const Vec beta = Set(tiles->beta[i]);
    for (int64_t j = 0; j <= i; j += kLanes) {
      const int64_t at = i * rows + j;
      const Vec decay = DecayBetween(tiles->decays, i, j);
      Store(tiles->a + at, InFrontOf(i, j, beta * decay * Load(group_tiles.kk + at)));
      Store(tiles->p + at, decay * Load(group_tiles.qk + at));
    }
  }
  Pack<T>(problem.v, chunk, group, of_group, problem.value, sizes.v, tiles->gap);
  if (!chunk.first) {
    MatrixProduct<false, false>(rows, sizes.v, All{sizes.k}, {group_tiles.k, sizes.k},
                                {state, sizes.v}, {tiles->read, sizes.v});
    for (int64_t i = 0; i < rows; ++i) {
      const Vec decay = Set(tiles->decays.from_begin[i]);
      for (int64_t d = i * sizes.v; d < (i + 1) * sizes.v; d += kLanes)
        Store(tiles->gap + d, NegatedFma(decay, Load(tiles->read + d), Load(tiles->gap + d)));
    }
  }
  ScaleRows(tiles->gap, tiles->beta, rows, sizes.v, tiles->written);
  SolveLower(rows, sizes.v, tiles->a, tiles->written);
}

// state = the state behind the chunk.
void CarryState(const Sizes& sizes, const TokenChunk& chunk, const GroupTiles& group_tiles,
                const HeadTiles& tiles, float* state) {
  const int64_t rows = PaddedChunk(chunk.count);
  ScaleAll(tiles.decays.whole, sizes.k * sizes.v, state);
  ScaleRows(group_tiles.k, tiles.decays.to_end, rows, sizes.k, tiles.factor);
  AddOuterProducts(rows, {tiles.factor, sizes.k}, {tiles.written, sizes.v}, state);
}

template <typename T>
void Forward(const T*, const GatedDeltaProblem& problem, int64_t begin, int64_t end, int64_t group,
             float* scratch) {
  const Sizes sizes(problem);
  Pieces pieces(scratch);
  const GroupTiles group_tiles = TakeGroup(problem, &pieces);
  HeadTiles tiles = TakeHead(problem, &pieces);
  float* const out = pieces.Take(kChunkTokens * sizes.v);
  float* const states = pieces.Take(problem.group_heads * sizes.k * sizes.v);
  Clear(problem.group_heads * sizes.k * sizes.v, states);
  for (int64_t at = begin; at < end; at += kChunkTokens) {
    const TokenChunk chunk = ChunkAt(begin, end, at);
    const int64_t rows = PaddedChunk(chunk.count);
    PackGroup<T>(problem, chunk, group, group_tiles);
    for (int64_t of_group = 0; of_group < problem.group_heads; ++of_group) {
      float* const state = states + of_group * sizes.k * sizes.v;
      FillHead<T>(problem, chunk, group * problem.group_heads + of_group, group_tiles, state,
                  &tiles);
      MatrixProduct<false, false>(rows, sizes.v, LowerLeft(), {tiles.p, rows},
                                  {tiles.written, sizes.v}, {out, sizes.v});
      if (!chunk.first) {
        ScaleRows(group_tiles.q, tiles.decays.from_begin, rows, sizes.k, tiles.factor);
        MatrixProduct<false, true>(rows, sizes.v, All{sizes.k}, {tiles.factor, sizes.k},
                                   {state, sizes.v}, {out, sizes.v});
      }
      for (int64_t i = 0; i < chunk.count; ++i)
        Narrow(out + i * sizes.v, problem.value, 1,
               At<T>(problem.out, chunk.begin + i, group, of_group));
      if (!chunk.last) CarryState(sizes, chunk, group_tiles, tiles, state);
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
  const Vec beta = Set(Logistic(ElementOf<T>(At<T>(problem.beta, token, group, of_group), 0)));
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
    float norm;
    Widen(At<T>(problem.q, t, group, 0), problem.key, 1, sizes.k, q);
    Widen(At<T>(problem.k, t, group, 0), problem.key, 1, sizes.k, k);
    Normalize(1, sizes.k, scale, q, &norm);
    Normalize(1, sizes.k, 1, k, &norm);
    for (int64_t of_group = 0; of_group < problem.group_heads; ++of_group)
      ContinueHead<T>(problem, t, group * problem.group_heads + of_group, q, k,
                      states + of_group * size, pieces);
  }
}

float* StateOf(const GatedDeltaProblem& problem, int64_t place, int64_t head) {
  const Sizes sizes(problem);
  return problem.states + (place * problem.groups * problem.group_heads + head) * sizes.k * sizes.v;
}

// Finds the states in front of the chunks.
template <typename T>
void FindStates(const GatedDeltaProblem& problem, int64_t begin, int64_t end, int64_t group,
                const GroupTiles& group_tiles, HeadTiles* tiles, float* states) {
  const Sizes sizes(problem);
  const int64_t size = sizes.k * sizes.v;
  Clear(problem.group_heads * size, states);
  for (int64_t at = begin; at + kChunkTokens < end; at += kChunkTokens) {
    const TokenChunk chunk = ChunkAt(begin, end, at);
    PackGroup<T>(problem, chunk, group, group_tiles);
    for (int64_t of_group = 0; of_group < problem.group_heads; ++of_group) {
      const int64_t head = group * problem.group_heads + of_group;
      float* const state = states + of_group * size;
      FillHead<T>(problem, chunk, head, group_tiles, state, tiles);
      CarryState(sizes, chunk, group_tiles, *tiles, state);
      CopyAll(state, size, StateOf(problem, NextPlaceOf(chunk), head));
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
  // The decay up to a token has the steps up to it.
  float behind = gradients.whole;
  for (int64_t i = chunk.count - 1; i >= 0; --i) {
    behind += gradients.log_decay[i];
    const int64_t token = chunk.begin + i;
    const float draw = -tiles.decays.rate * behind * Logistic(tiles.decays.raw[i]);
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
  for (int64_t i = 0; i < chunk.count; ++i) {
    float* const row = dunit + i * padded;
    const float along = DotProduct(row, unit + i * padded, padded) / scale;
    for (int64_t d = 0; d < padded; d += kLanes) {
      const Vec gradient =
          NegatedFma(Set(along), Load(unit + i * padded + d), Set(scale) * Load(row + d));
      Store(row + d, gradient);
    }
    Narrow(row, width, norm[i], At<T>(dx, chunk.begin + i, group, 0));
  }
}

template <typename T>
void Backward(const T*, const GatedDeltaProblem& problem, int64_t begin, int64_t end, int64_t group,
              float* scratch) {
  const Sizes sizes(problem);
  const int64_t k = sizes.k, v = sizes.v, size = k * v;
  Pieces pieces(scratch);
  const GroupTiles group_tiles = TakeGroup(problem, &pieces);
  HeadTiles tiles = TakeHead(problem, &pieces);
  float* const dstates = pieces.Take(problem.group_heads * size);
  FindStates<T>(problem, begin, end, group, group_tiles, &tiles, dstates);

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
  float* const state_transposed = pieces.Take(size);
  float* const before = pieces.Take(size);  // the gradient of the state in front of the chunk
  Clear(problem.group_heads * size, dstates);
  const int64_t chunks = (end - begin + kChunkTokens - 1) / kChunkTokens;
  for (int64_t c = chunks - 1; c >= 0; --c) {
    const TokenChunk chunk = ChunkAt(begin, end, begin + c * kChunkTokens);
    const int64_t rows = PaddedChunk(chunk.count);
    PackGroup<T>(problem, chunk, group, group_tiles);
    Clear(rows * k, group_gradients.dq);
    Clear(rows * k, group_gradients.dk);
    Clear(rows * rows, group_gradients.dkk);
    Clear(rows * rows, group_gradients.dqk);
    for (int64_t of_group = 0; of_group < problem.group_heads; ++of_group) {
      const int64_t head = group * problem.group_heads + of_group;
      float* const dstate = dstates + of_group * size;
      const float* const state = chunk.first ? nullptr : StateOf(problem, PlaceOf(chunk), head);
      FillHead<T>(problem, chunk, head, group_tiles, state, &tiles);
      const Decays& decays = tiles.decays;
      StepGradients gradients;
      Clear(kChunkTokens, gradients.log_decay);
      Clear(kChunkTokens, gradients.beta);
      gradients.whole = 0;
      Pack<T>(problem.dout, chunk, group, of_group, problem.value, v, dout);

      // The gradient of u, and through the system that of its right side.
      MatrixProduct<true, false>(rows, v, LowerLeftTransposed{rows}, {tiles.p, rows}, {dout, v},
                                 {dwritten, v});
      if (!chunk.last) {
        ScaleRows(group_tiles.k, decays.to_end, rows, k, tiles.factor);
        MatrixProduct<false, true>(rows, v, All{k}, {tiles.factor, k}, {dstate, v}, {dwritten, v});
      }
      SolveUpper(rows, v, tiles.a, dwritten);
      Transpose(rows, v, {tiles.written, v}, {transposed, rows});
      MatrixProduct<false, false>(rows, rows, LowerResult{v}, {dwritten, v}, {transposed, rows},
                                  {minus_da, rows});
      MatrixProduct<false, false>(rows, rows, LowerResult{v}, {dout, v}, {transposed, rows},
                                  {dp, rows});
      BackwardWithin(group_tiles, tiles, rows, minus_da, dp, group_gradients, &gradients);
      for (int64_t i = 0; i < rows; ++i)
        gradients.beta[i] += DotProduct(dwritten + i * v, tiles.gap + i * v, v);
      ScaleRows(dwritten, tiles.beta, rows, v, dwritten);  // the gradient of v
      for (int64_t i = 0; i < chunk.count; ++i)
        Narrow(dwritten + i * v, problem.value, 1,
               At<T>(problem.dv, chunk.begin + i, group, of_group));

      Clear(size, before);
      if (!chunk.last && !chunk.first) {
        gradients.whole += decays.whole * DotProduct(dstate, state, size);
        CopyAll(dstate, size, before);
        ScaleAll(decays.whole, size, before);
      }
      if (!chunk.last) {
        Transpose(k, v, {dstate, v}, {state_transposed, k});
        ScaleRows(tiles.written, decays.to_end, rows, v, scaled);
        MatrixProduct<false, false>(rows, k, All{v}, {scaled, v}, {state_transposed, k},
                                    {through, k});
        for (int64_t i = 0; i < rows; ++i) {
          const float dot = DotProduct(group_tiles.k + i * k, through + i * k, k);
          gradients.log_decay[i] -= dot;
          gradients.whole += dot;
        }
        AddAll(through, rows * k, group_gradients.dk);
      }
      if (!chunk.first) {
        Transpose(k, v, {state, v}, {state_transposed, k});
        // Through what is read at keys, with the other sign.
        ScaleRows(dwritten, decays.from_begin, rows, v, scaled);
        ScaleAll(-1, rows * v, scaled);
        for (int64_t i = 0; i < rows; ++i)
          gradients.log_decay[i] += DotProduct(scaled + i * v, tiles.read + i * v, v);
        MatrixProduct<false, true>(rows, k, All{v}, {scaled, v}, {state_transposed, k},
                                   {group_gradients.dk, k});
        AddOuterProducts(rows, {group_tiles.k, k}, {scaled, v}, before);
        // And at queries.
        ScaleRows(dout, decays.from_begin, rows, v, scaled);
        MatrixProduct<false, false>(rows, k, All{v}, {scaled, v}, {state_transposed, k},
                                    {through, k});
        for (int64_t i = 0; i < rows; ++i)
          gradients.log_decay[i] += DotProduct(group_tiles.q + i * k, through + i * k, k);
        AddAll(through, rows * k, group_gradients.dq);
        AddOuterProducts(rows, {group_tiles.q, k}, {scaled, v}, before);
      }
      CopyAll(before, size, dstate);
      WriteSteps<T>(problem, chunk, head, tiles, gradients);
    }
    const Matrix<const float> dkk = {group_gradients.dkk, rows}, dqk = {group_gradients.dqk, rows};
    const Matrix<const float> queries = {group_tiles.q, k}, keys = {group_tiles.k, k};
    const Matrix<float> dq = {group_gradients.dq, k}, dk = {group_gradients.dk, k};
    MatrixProduct<false, true>(rows, k, LowerLeft(), dkk, keys, dk);
    MatrixProduct<true, true>(rows, k, LowerLeftTransposed{rows}, dkk, keys, dk);
    MatrixProduct<true, true>(rows, k, LowerLeftTransposed{rows}, dqk, queries, dk);
    MatrixProduct<false, true>(rows, k, LowerLeft(), dqk, keys, dq);
    WriteUnnormalized<T>(chunk, group, problem.key, k, group_tiles.scale, group_tiles.q,
                         group_tiles.q_norm, group_gradients.dq, problem.dq);
    WriteUnnormalized<T>(chunk, group, problem.key, k, 1, group_tiles.k, group_tiles.k_norm,
                         group_gradients.dk, problem.dk);
  }
}

}  // namespace

void GatedDeltaForward(const GatedDeltaProblem& problem, int64_t begin, int64_t end, int64_t group,
                       float* scratch) {
  WithType(problem.dtype, [&](auto* type) { Forward(type, problem, begin, end, group, scratch); });
}

void GatedDeltaBackward(const GatedDeltaProblem& problem, int64_t begin, int64_t end, int64_t group,
                        float* scratch) {
  WithType(problem.dtype, [&](auto* type) { Backward(type, problem, begin, end, group, scratch); });
}

void GatedDeltaContinue(const GatedDeltaProblem& problem, const StatePortion& portion,
                        int64_t group, float* scratch) {
  WithType(problem.dtype, [&](auto* type) { Continue(type, problem, portion, group, scratch); });
}

}  // namespace megatron::ops::MEGATRON_ISA
