#include "megatron/ops/cpu/state_space_kernels.h"

#include "megatron/ops/cpu/chunk_tile.h"
#include "megatron/ops/cpu/loops.h"
#include "megatron/ops/cpu/vec.h"

namespace megatron::ops::MEGATRON_ISA {
namespace {

struct Sizes {
  int64_t n, p;  // padded

  explicit Sizes(const StateSpaceProblem& problem)
      : n(PaddedChunk(problem.state)), p(PaddedChunk(problem.channels)) {}
};

float* StateOf(const StateSpaceProblem& problem, float* states, int64_t place, int64_t head) {
  const Sizes sizes(problem);
  return states + (place * problem.groups * problem.group_heads + head) * sizes.n * sizes.p;
}

template <typename T>
void Carry(const T*, const StateSpaceProblem& problem, int64_t begin, int64_t end, int64_t head,
           float* scratch) {
  if (end - begin <= kChunkTokens) return;
  const Sizes sizes(problem);
  const int64_t group = head / problem.group_heads, of_group = head % problem.group_heads;
  Pieces pieces(scratch);
  float* const b = pieces.Take(kChunkTokens * sizes.n);
  float* const x = pieces.Take(kChunkTokens * sizes.p);
  float* const state = pieces.Take(sizes.n * sizes.p);
  Clear(sizes.n * sizes.p, state);
  for (int64_t at = begin; at + kChunkTokens < end; at += kChunkTokens) {
    const TokenChunk chunk = ChunkAt(begin, end, at);
    Decays steps;
    FillDecays<T>(problem.decay, problem.group_heads, chunk, head, &steps);
    float factor[kChunkTokens];
    for (int64_t i = 0; i < kChunkTokens; ++i) factor[i] = steps.to_end[i] * steps.step[i];
    Pack<T>(problem.b, chunk, group, 0, problem.state, sizes.n, b);
    Pack<T>(problem.x, chunk, group, of_group, problem.channels, sizes.p, x);
    ScaleRows(x, factor, kChunkTokens, sizes.p, x);
    ScaleAll(steps.whole, sizes.n * sizes.p, state);
    AddOuterProducts(kChunkTokens, {b, sizes.n}, {x, sizes.p}, state);
    CopyAll(state, sizes.n * sizes.p, StateOf(problem, problem.states, NextPlaceOf(chunk), head));
  }
}

template <typename T>
void CarryBack(const T*, const StateSpaceProblem& problem, int64_t begin, int64_t end, int64_t head,
               float* scratch) {
  if (end - begin <= kChunkTokens) return;
  const Sizes sizes(problem);
  const int64_t group = head / problem.group_heads, of_group = head % problem.group_heads;
  Pieces pieces(scratch);
  float* const c = pieces.Take(kChunkTokens * sizes.n);
  float* const dy = pieces.Take(kChunkTokens * sizes.p);
  float* const gradient = pieces.Take(sizes.n * sizes.p);
  Clear(sizes.n * sizes.p, gradient);
  const int64_t chunks = (end - begin + kChunkTokens - 1) / kChunkTokens;
  for (int64_t i = chunks - 1; i > 0; --i) {
    const TokenChunk chunk = ChunkAt(begin, end, begin + i * kChunkTokens);
    const int64_t rows = PaddedChunk(chunk.count);
    Decays steps;
    FillDecays<T>(problem.decay, problem.group_heads, chunk, head, &steps);
    Pack<T>(problem.c, chunk, group, 0, problem.state, sizes.n, c);
    Pack<T>(problem.dy, chunk, group, of_group, problem.channels, sizes.p, dy);
    ScaleRows(dy, steps.from_begin, rows, sizes.p, dy);
    ScaleAll(steps.whole, sizes.n * sizes.p, gradient);
    AddOuterProducts(rows, {c, sizes.n}, {dy, sizes.p}, gradient);
    CopyAll(gradient, sizes.n * sizes.p,
            StateOf(problem, problem.state_gradients, PlaceOf(chunk), head));
  }
}

// What the heads of a group share of a chunk.
struct GroupTiles {
  int64_t rows;
  float *b, *c;  // [rows, n]
  float* cb;     // [rows, rows]: products of C of a token and B of one up to it
};

template <typename T>
GroupTiles PackGroup(const StateSpaceProblem& problem, const TokenChunk& chunk, int64_t group,
                     Pieces* pieces) {
  const Sizes sizes(problem);
  GroupTiles tiles;
  tiles.rows = PaddedChunk(chunk.count);
  tiles.b = pieces->Take(kChunkTokens * sizes.n);
  tiles.c = pieces->Take(kChunkTokens * sizes.n);
  tiles.cb = pieces->Take(kChunkTokens * kChunkTokens);
  float* const transposed = pieces->Take(kChunkTokens * sizes.n);
  Pack<T>(problem.b, chunk, group, 0, problem.state, sizes.n, tiles.b);
  Pack<T>(problem.c, chunk, group, 0, problem.state, sizes.n, tiles.c);
  Transpose(tiles.rows, sizes.n, {tiles.b, sizes.n}, {transposed, tiles.rows});
  MatrixProduct<false, false>(tiles.rows, tiles.rows, LowerResult{sizes.n}, {tiles.c, sizes.n},
                              {transposed, tiles.rows}, {tiles.cb, tiles.rows});
  return tiles;
}

template <typename T>
void ChunkForward(const T*, const StateSpaceProblem& problem, const TokenChunk& chunk,
                  int64_t group, float* scratch) {
  const Sizes sizes(problem);
  Pieces pieces(scratch);
  const GroupTiles tiles = PackGroup<T>(problem, chunk, group, &pieces);
  const int64_t rows = tiles.rows;
  float* const weights = pieces.Take(kChunkTokens * kChunkTokens);
  float* const x = pieces.Take(kChunkTokens * sizes.p);
  float* const y = pieces.Take(kChunkTokens * sizes.p);
  float* const scaled = pieces.Take(kChunkTokens * sizes.n);
  for (int64_t of_group = 0; of_group < problem.group_heads; ++of_group) {
    const int64_t head = group * problem.group_heads + of_group;
    Decays steps;
    FillDecays<T>(problem.decay, problem.group_heads, chunk, head, &steps);
    Pack<T>(problem.x, chunk, group, of_group, problem.channels, sizes.p, x);
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j <= i; j += kLanes) {
        const int64_t at = i * rows + j;
        Store(weights + at, Load(tiles.cb + at) * DecayBetween(steps, i, j) * Load(steps.step + j));
      }
    }
    MatrixProduct<false, false>(rows, sizes.p, LowerLeft(), {weights, rows}, {x, sizes.p},
                                {y, sizes.p});
    if (!chunk.first) {
      ScaleRows(tiles.c, steps.from_begin, rows, sizes.n, scaled);
      MatrixProduct<false, true>(rows, sizes.p, All{sizes.n}, {scaled, sizes.n},
                                 {StateOf(problem, problem.states, PlaceOf(chunk), head), sizes.p},
                                 {y, sizes.p});
    }
    const Vec skip = Set(ElementOf<T>(problem.skip, head));
    for (int64_t i = 0; i < chunk.count; ++i) {
      float* const row = y + i * sizes.p;
      for (int64_t d = 0; d < sizes.p; d += kLanes)
        Store(row + d, Fma(skip, Load(x + i * sizes.p + d), Load(row + d)));
      Narrow(row, problem.channels, 1, At<T>(problem.y, chunk.begin + i, group, of_group));
    }
  }
}

template <typename T>
void Continue(const T*, const StateSpaceProblem& problem, const StatePortion& portion, int64_t head,
              float* scratch) {
  const Sizes sizes(problem);
  const int64_t group = head / problem.group_heads, of_group = head % problem.group_heads;
  Pieces pieces(scratch);
  float* const b = pieces.Take(sizes.n);
  float* const c = pieces.Take(sizes.n);
  float* const x = pieces.Take(sizes.p);
  float* const y = pieces.Take(sizes.p);
  float* const state = portion.states + head * problem.state * problem.channels;
  if (portion.anew) ClearState(problem.state * problem.channels, state);
  const Vec skip = Set(ElementOf<T>(problem.skip, head));
  for (int64_t t = portion.begin; t < portion.end; ++t) {
    Widen(At<T>(problem.b, t, group, 0), problem.state, 1, sizes.n, b);
    Widen(At<T>(problem.c, t, group, 0), problem.state, 1, sizes.n, c);
    Widen(At<T>(problem.x, t, group, of_group), problem.channels, 1, sizes.p, x);
    const TokenDecay at = DecayAt<T>(problem.decay, t, group, of_group, head);
    const Vec decay = Set(at.decay);
    Clear(sizes.p, y);
    for (int64_t n = 0; n < problem.state; ++n) {
      const Vec write = Set(at.step * b[n]), read = Set(c[n]);
      float* const row = state + n * problem.channels;
      ForEachVec(problem.channels, [&](auto access, int64_t d) {
        const Vec s = Fma(write, Load(x + d), decay * access.load(row + d));
        access.store(row + d, s);
        Store(y + d, Fma(read, s, Load(y + d)));
      });
    }
    for (int64_t d = 0; d < sizes.p; d += kLanes) Store(y + d, Fma(skip, Load(x + d), Load(y + d)));
    Narrow(y, problem.channels, 1, At<T>(problem.y, t, group, of_group));
  }
}

// The gradients of a chunk's steps, as they are summed up for one head.
struct StepGradients {
  float step[kChunkTokens];       // the gradient of what is multiplied by the step
  float log_decay[kChunkTokens];  // the gradient of Decays::log_decay
};

// Adds what comes of the products within the chunk: writes `weights`, the factors of x in y, and
// adds the gradients of products of C and B to dcb.
void BackwardWithin(const GroupTiles& tiles, const Decays& steps, const float* dweights,
                    float* weights, float* dcb, StepGradients* gradients) {
  const int64_t rows = tiles.rows;
  for (int64_t i = 0; i < rows; ++i) {
    Vec row_sum = Zero();
    for (int64_t j = 0; j <= i; j += kLanes) {
      const int64_t at = i * rows + j;
      const Vec decay = DecayBetween(steps, i, j), step = Load(steps.step + j);
      const Vec cb = Load(tiles.cb + at), dweight = Load(dweights + at);
      const Vec of_step = dweight * cb * decay, product = InFrontOf(i, j, of_step * step);
      Store(weights + at, cb * decay * step);
      Store(dcb + at, Fma(dweight, decay * step, Load(dcb + at)));
      Store(gradients->step + j, Load(gradients->step + j) + of_step);
      Store(gradients->log_decay + j, Load(gradients->log_decay + j) - product);
      row_sum = row_sum + product;
    }
    gradients->log_decay[i] += Sum(row_sum);
  }
}

template <typename T>
void ChunkBackward(const T*, const StateSpaceProblem& problem, const TokenChunk& chunk,
                   int64_t group, float* scratch) {
  const Sizes sizes(problem);
  const int64_t heads = problem.groups * problem.group_heads;
  Pieces pieces(scratch);
  const GroupTiles tiles = PackGroup<T>(problem, chunk, group, &pieces);
  const int64_t rows = tiles.rows, n = sizes.n, p = sizes.p;
  float* const weights = pieces.Take(kChunkTokens * kChunkTokens);
  float* const dweights = pieces.Take(kChunkTokens * kChunkTokens);
  float* const dcb = pieces.Take(kChunkTokens * kChunkTokens);
  float* const db = pieces.Take(kChunkTokens * n);
  float* const dc = pieces.Take(kChunkTokens * n);
  float* const read = pieces.Take(kChunkTokens * n);
  float* const x = pieces.Take(kChunkTokens * p);
  float* const dy = pieces.Take(kChunkTokens * p);
  float* const dx = pieces.Take(kChunkTokens * p);
  float* const scaled = pieces.Take(kChunkTokens * p);
  float* const through = pieces.Take(kChunkTokens * p);
  float* const transposed = pieces.Take(kChunkTokens * p);
  float* const state_transposed = pieces.Take(n * p);
  Clear(rows * rows, dcb);
  Clear(rows * n, db);
  Clear(rows * n, dc);
  for (int64_t of_group = 0; of_group < problem.group_heads; ++of_group) {
    const int64_t head = group * problem.group_heads + of_group;
    Decays steps;
    FillDecays<T>(problem.decay, problem.group_heads, chunk, head, &steps);
    StepGradients gradients;
    Clear(kChunkTokens, gradients.step);
    Clear(kChunkTokens, gradients.log_decay);
    Pack<T>(problem.x, chunk, group, of_group, problem.channels, p, x);
    Pack<T>(problem.dy, chunk, group, of_group, problem.channels, p, dy);
    Transpose(rows, p, {x, p}, {transposed, rows});
    MatrixProduct<false, false>(rows, rows, LowerResult{p}, {dy, p}, {transposed, rows},
                                {dweights, rows});
    BackwardWithin(tiles, steps, dweights, weights, dcb, &gradients);
    MatrixProduct<true, false>(rows, p, LowerLeftTransposed{rows}, {weights, rows}, {dy, p},
                               {dx, p});
    float whole = 0;  // the gradient of the logarithm of the decay over the chunk
    if (!chunk.last) {
      const float* const dstate =
          StateOf(problem, problem.state_gradients, NextPlaceOf(chunk), head);
      MatrixProduct<false, false>(rows, p, All{n}, {tiles.b, n}, {dstate, p}, {through, p});
      float factor[kChunkTokens];
      for (int64_t i = 0; i < rows; ++i) {
        factor[i] = steps.to_end[i] * steps.step[i];
        const float dot = DotProduct(x + i * p, through + i * p, p);
        gradients.step[i] += steps.to_end[i] * dot;
        gradients.log_decay[i] -= factor[i] * dot;
        whole += factor[i] * dot;
        for (int64_t d = 0; d < p; d += kLanes)
          Store(dx + i * p + d,
                Fma(Set(factor[i]), Load(through + i * p + d), Load(dx + i * p + d)));
      }
      ScaleRows(x, factor, rows, p, scaled);
      Transpose(n, p, {dstate, p}, {state_transposed, n});
      MatrixProduct<false, true>(rows, n, All{p}, {scaled, p}, {state_transposed, n}, {db, n});
      if (!chunk.first) {
        whole += steps.whole *
                 DotProduct(dstate, StateOf(problem, problem.states, PlaceOf(chunk), head), n * p);
      }
    }
    if (!chunk.first) {
      ScaleRows(dy, steps.from_begin, rows, p, scaled);
      Transpose(n, p, {StateOf(problem, problem.states, PlaceOf(chunk), head), p},
                {state_transposed, n});
      MatrixProduct<false, false>(rows, n, All{p}, {scaled, p}, {state_transposed, n}, {read, n});
      for (int64_t i = 0; i < rows; ++i)
        gradients.log_decay[i] += DotProduct(tiles.c + i * n, read + i * n, n);
      AddAll(read, rows * n, dc);
    }
    // The decay up to a token has the steps up to it.
    float behind = whole, drate = 0, dbias = 0, dskip = 0;
    const float skip = ElementOf<T>(problem.skip, head);
    for (int64_t i = chunk.count - 1; i >= 0; --i) {
      behind += gradients.log_decay[i];
      const float dstep = gradients.step[i] - steps.rate * behind;
      drate -= steps.step[i] * behind;
      const float draw = dstep * Logistic(steps.raw[i]);
      dbias += draw;
      dskip += DotProduct(dy + i * p, x + i * p, p);
      float* const row = dx + i * p;
      for (int64_t d = 0; d < p; d += kLanes)
        Store(row + d, Fma(Set(skip), Load(dy + i * p + d), Load(row + d)));
      Narrow(row, problem.channels, 1, At<T>(problem.dx, chunk.begin + i, group, of_group));
      StoreElement<T>(problem.dstep, chunk.begin + i, group, of_group, draw);
    }
    float* const sums = problem.sums + 3 * (PlaceOf(chunk) * heads + head);
    sums[0] += dbias;
    sums[1] += drate * steps.rate;
    sums[2] += dskip;
  }
  MatrixProduct<true, true>(rows, n, LowerLeftTransposed{rows}, {dcb, rows}, {tiles.c, n}, {db, n});
  MatrixProduct<false, true>(rows, n, LowerLeft(), {dcb, rows}, {tiles.b, n}, {dc, n});
  for (int64_t i = 0; i < chunk.count; ++i) {
    Narrow(db + i * n, problem.state, 1, At<T>(problem.db, chunk.begin + i, group, 0));
    Narrow(dc + i * n, problem.state, 1, At<T>(problem.dc, chunk.begin + i, group, 0));
  }
}

}  // namespace

void StateSpaceCarry(const StateSpaceProblem& problem, int64_t begin, int64_t end, int64_t head,
                     float* scratch) {
  WithType(problem.dtype, [&](auto* type) { Carry(type, problem, begin, end, head, scratch); });
}

void StateSpaceCarryBack(const StateSpaceProblem& problem, int64_t begin, int64_t end, int64_t head,
                         float* scratch) {
  WithType(problem.dtype, [&](auto* type) { CarryBack(type, problem, begin, end, head, scratch); });
}

void StateSpaceChunkForward(const StateSpaceProblem& problem, const TokenChunk& chunk,
                            int64_t group, float* scratch) {
  WithType(problem.dtype, [&](auto* type) { ChunkForward(type, problem, chunk, group, scratch); });
}

void StateSpaceChunkBackward(const StateSpaceProblem& problem, const TokenChunk& chunk,
                             int64_t group, float* scratch) {
  WithType(problem.dtype, [&](auto* type) { ChunkBackward(type, problem, chunk, group, scratch); });
}

void StateSpaceContinue(const StateSpaceProblem& problem, const StatePortion& portion, int64_t head,
                        float* scratch) {
  WithType(problem.dtype, [&](auto* type) { Continue(type, problem, portion, head, scratch); });
}

}  // namespace megatron::ops::MEGATRON_ISA
