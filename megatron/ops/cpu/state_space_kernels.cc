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

// What a block of heads has of the gradients of B and C at a token, one behind the other.
float* BlockRow(const StateSpaceProblem& problem, int64_t token, int64_t group, int64_t block) {
  const int64_t blocks = HeadBlocksOf(problem).count;
  return problem.block_gradients +
         ((token * problem.groups + group) * blocks + block) * 2 * Sizes(problem).n;
}

// Writes the states in front of the chunks but the first, transposed.
template <typename T>
void Carry(const T*, const StateSpaceProblem& problem, const HeadsOfSequence& part,
           float* scratch) {
  const Sizes sizes(problem);
  const int64_t n = sizes.n, p = sizes.p, group = part.first_head / problem.group_heads;
  Pieces pieces(scratch);
  float* const b = pieces.Take(kChunkTokens * n);
  float* const x = pieces.Take(kChunkTokens * p);
  Ahead ahead;
  for (int64_t at = part.begin; at + kChunkTokens < part.end; at += kChunkTokens) {
    const TokenChunk chunk = ChunkAt(part.begin, part.end, at);
    const TokenChunk next_chunk = ChunkAt(part.begin, part.end, at + kChunkTokens);
    Pack<T>(problem.b, chunk, group, 0, problem.state, n, b);
    for (int64_t head = part.first_head; head < part.end_head; ++head) {
      const bool in_chunk = head + 1 < part.end_head;
      const int64_t next = (in_chunk ? head + 1 : part.first_head) % problem.group_heads;
      FetchRows<T>(problem.x, in_chunk ? chunk : next_chunk, group, next, problem.channels, &ahead);
      if (head == part.first_head)
        FetchRows<T>(problem.b, next_chunk, group, 0, problem.state, &ahead);
      Decays steps;
      FillDecays<T>(problem.decay, problem.group_heads, chunk, head, &steps);
      float factor[kChunkTokens];
      for (int64_t i = 0; i < kChunkTokens; ++i) factor[i] = steps.to_end[i] * steps.step[i];
      Pack<T>(problem.x, chunk, group, head % problem.group_heads, problem.channels, p, x, factor);
      const float* const before =
          chunk.first ? nullptr : StateAt(problem, n * p, PlaceOf(chunk), head);
      float* const behind = StateAt(problem, n * p, NextPlaceOf(chunk), head);
      CarryOuterProducts(kChunkTokens, {x, p}, {b, n}, steps.whole, {before, n}, {behind, n},
                         &ahead);
    }
  }
}

// What the heads of a group share of a chunk.
struct GroupTiles {
  int64_t rows;
  float *b, *c;       // [rows, n]
  float* cb;          // [rows, rows]: products of C of a token and B of one up to it
  float* transposed;  // [n, rows]
};

GroupTiles TakeGroup(const StateSpaceProblem& problem, Pieces* pieces) {
  const Sizes sizes(problem);
  GroupTiles tiles;
  tiles.rows = 0;
  tiles.b = pieces->Take(kChunkTokens * sizes.n);
  tiles.c = pieces->Take(kChunkTokens * sizes.n);
  tiles.cb = pieces->Take(kChunkTokens * kChunkTokens);
  tiles.transposed = pieces->Take(kChunkTokens * sizes.n);
  return tiles;
}

template <typename T>
void PackGroup(const StateSpaceProblem& problem, const TokenChunk& chunk, int64_t group,
               GroupTiles* tiles, Ahead* ahead) {
  const Sizes sizes(problem);
  const int64_t rows = PaddedChunk(chunk.count);
  tiles->rows = rows;
  Pack<T>(problem.b, chunk, group, 0, problem.state, sizes.n, tiles->b);
  Pack<T>(problem.c, chunk, group, 0, problem.state, sizes.n, tiles->c);
  Transpose(rows, sizes.n, {tiles->b, sizes.n}, {tiles->transposed, rows});
  Product<false>(rows, rows, LowerResult{sizes.n}, {tiles->c, sizes.n}, {tiles->transposed, rows},
                 FromZero(), {tiles->cb, rows}, ahead);
}

// What the heads of a group share of the inputs, or of the gradients.
struct GroupOperands {
  const ChunkOperand &b, &c, &step;
};
template <typename T>
void FetchGroup(const StateSpaceProblem& problem, const GroupOperands& operands,
                const TokenChunk& chunk, int64_t group, Ahead* ahead) {
  FetchRows<T>(operands.b, chunk, group, 0, problem.state, ahead);
  FetchRows<T>(operands.c, chunk, group, 0, problem.state, ahead);
  FetchRows<T>(operands.step, chunk, group, 0, problem.group_heads, ahead);
}

// One head's part of a chunk: [rows, rows] the factors of x in y, and [rows, p].
struct HeadTiles {
  float *weights, *x, *y;
};

// Adds x times `skip` to what the weights make of x.
void AddSkip(int64_t rows, float skip, float* weights) {
  for (int64_t i = 0; i < rows; ++i) weights[i * rows + i] += skip;
}

// Writes a head's outputs of a chunk. The state in front of it becomes that behind it.
template <typename T>
void ForwardHead(const StateSpaceProblem& problem, const TokenChunk& chunk, int64_t head,
                 const GroupTiles& group, const HeadTiles& tiles, float* state, Ahead* ahead) {
  const Sizes sizes(problem);
  const int64_t rows = group.rows, n = sizes.n, p = sizes.p;
  const int64_t of_group = head % problem.group_heads;
  Decays steps;
  FillDecays<T>(problem.decay, problem.group_heads, chunk, head, &steps);
  Pack<T>(problem.x, chunk, head / problem.group_heads, of_group, problem.channels, p, tiles.x);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j <= i; j += kLanes) {
      const int64_t at = i * rows + j;
      Store(tiles.weights + at,
            Load(group.cb + at) * DecayBetween(steps, i, j) * Load(steps.step + j));
    }
    ClearBehind(rows, i, tiles.weights);
  }
  AddSkip(rows, ElementOf<T>(problem.skip, head), tiles.weights);
  const Matrix<const float> weights = {tiles.weights, rows}, x = {tiles.x, p};
  if (chunk.first) {
    Product<false>(rows, p, LowerLeft(), weights, x, FromZero(), {tiles.y, p}, ahead);
  } else {
    Product<false>(rows, p, All{n}, {group.c, n}, {state, p}, FromZero(), {tiles.y, p}, ahead);
    Product<false>(rows, p, LowerLeft(), weights, x, FromScaledRows{steps.from_begin, {tiles.y, p}},
                   {tiles.y, p}, ahead);
  }
  for (int64_t i = 0; i < chunk.count; ++i)
    Narrow(tiles.y + i * p, problem.channels, 1,
           At<T>(problem.y, chunk.begin + i, head / problem.group_heads, of_group));
  if (chunk.last) return;
  float factor[kChunkTokens];
  for (int64_t i = 0; i < kChunkTokens; ++i) factor[i] = steps.to_end[i] * steps.step[i];
  ScaleRows(tiles.x, factor, rows, p, tiles.x);
  CarryOuterProducts(rows, {group.b, n}, x, steps.whole, {chunk.first ? nullptr : state, p},
                     {state, p}, ahead);
}

template <typename T>
void Forward(const T*, const StateSpaceProblem& problem, const HeadsOfSequence& part,
             float* scratch) {
  const Sizes sizes(problem);
  Pieces pieces(scratch);
  GroupTiles group = TakeGroup(problem, &pieces);
  HeadTiles tiles;
  tiles.weights = pieces.Take(kChunkTokens * kChunkTokens);
  tiles.x = pieces.Take(kChunkTokens * sizes.p);
  tiles.y = pieces.Take(kChunkTokens * sizes.p);
  float* const states = pieces.Take(0);
  Ahead ahead;
  for (int64_t first = part.first_head; first < part.end_head; first += kHeadsTogether) {
    const int64_t end =
        first + kHeadsTogether < part.end_head ? first + kHeadsTogether : part.end_head;
    for (int64_t at = part.begin; at < part.end; at += kChunkTokens) {
      const int64_t number = first / problem.group_heads;
      const TokenChunk chunk = ChunkAt(part.begin, part.end, at);
      PackGroup<T>(problem, chunk, number, &group, &ahead);
      for (int64_t head = first; head < end; ++head) {
        const bool in_chunk = head + 1 < end;
        if (in_chunk || !chunk.last) {
          const TokenChunk next =
              in_chunk ? chunk : ChunkAt(part.begin, part.end, at + kChunkTokens);
          const int64_t of_group = (in_chunk ? head + 1 : first) % problem.group_heads;
          FetchRows<T>(problem.x, next, number, of_group, problem.channels, &ahead);
          FetchRows<T>(problem.y, next, number, of_group, problem.channels, &ahead);
        }
        if (head == first && !chunk.last) {
          const TokenChunk next = ChunkAt(part.begin, part.end, at + kChunkTokens);
          FetchGroup<T>(problem, {problem.b, problem.c, problem.decay.raw}, next, number, &ahead);
        }
        ForwardHead<T>(problem, chunk, head, group, tiles,
                       states + (head - first) * sizes.n * sizes.p, &ahead);
      }
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
    ClearBehind(rows, i, weights);
    gradients->log_decay[i] += Sum(row_sum);
  }
}

// What the backward pass of a chunk works in.
struct BackwardTiles {
  float *weights, *dweights, *dcb;  // [rows, rows]
  float *db, *dc, *read;            // [rows, n]
  float *x, *dy, *dx, *scaled;      // [rows, p]
  float* transposed;                // [p, rows]
  float* state_transposed;          // [n, p]
};

BackwardTiles TakeBackward(const StateSpaceProblem& problem, Pieces* pieces) {
  const Sizes sizes(problem);
  BackwardTiles tiles;
  tiles.weights = pieces->Take(kChunkTokens * kChunkTokens);
  tiles.dweights = pieces->Take(kChunkTokens * kChunkTokens);
  tiles.dcb = pieces->Take(kChunkTokens * kChunkTokens);
  tiles.db = pieces->Take(kChunkTokens * sizes.n);
  tiles.dc = pieces->Take(kChunkTokens * sizes.n);
  tiles.read = pieces->Take(kChunkTokens * sizes.n);
  tiles.x = pieces->Take(kChunkTokens * sizes.p);
  tiles.dy = pieces->Take(kChunkTokens * sizes.p);
  tiles.dx = pieces->Take(kChunkTokens * sizes.p);
  tiles.scaled = pieces->Take(kChunkTokens * sizes.p);
  tiles.transposed = pieces->Take(kChunkTokens * sizes.p);
  tiles.state_transposed = pieces->Take(sizes.n * sizes.p);
  return tiles;
}

// Writes a head's gradients of x and steps in a chunk, and adds to those of B, of C, of their
// products and of the head's parameters. The gradient of the state behind the chunk becomes that of
// the state in front of it; both are transposed.
template <typename T>
void BackwardHead(const StateSpaceProblem& problem, const TokenChunk& chunk, int64_t head,
                  const GroupTiles& group, const BackwardTiles& tiles, float* dstate, float* sums,
                  Ahead* ahead) {
  const Sizes sizes(problem);
  const int64_t rows = group.rows, n = sizes.n, p = sizes.p;
  const int64_t number = head / problem.group_heads, of_group = head % problem.group_heads;
  const float* const state = chunk.first ? nullptr : StateAt(problem, n * p, PlaceOf(chunk), head);
  Decays steps;
  FillDecays<T>(problem.decay, problem.group_heads, chunk, head, &steps);
  StepGradients gradients;
  Clear(kChunkTokens, gradients.step);
  Clear(kChunkTokens, gradients.log_decay);
  Pack<T>(problem.x, chunk, number, of_group, problem.channels, p, tiles.x);
  Pack<T>(problem.dy, chunk, number, of_group, problem.channels, p, tiles.dy);
  Transpose(rows, p, {tiles.x, p}, {tiles.transposed, rows});
  Product<false>(rows, rows, LowerResult{p}, {tiles.dy, p}, {tiles.transposed, rows}, FromZero(),
                 {tiles.dweights, rows}, ahead);
  BackwardWithin(group, steps, tiles.dweights, tiles.weights, tiles.dcb, &gradients);
  AddSkip(rows, ElementOf<T>(problem.skip, head), tiles.weights);
  const Matrix<const float> weights = {tiles.weights, rows}, dy = {tiles.dy, p};
  float whole = 0;  // the gradient of the logarithm of the decay over the chunk
  float dots[kChunkTokens];
  if (chunk.last) {
    Product<true>(rows, p, LowerLeftTransposed{rows}, weights, dy, FromZero(), {tiles.dx, p},
                  ahead);
  } else {
    Transpose(p, n, {dstate, n}, {tiles.state_transposed, p});
    Product<false>(rows, p, All{n}, {group.b, n}, {tiles.state_transposed, p}, FromZero(),
                   {tiles.dx, p}, ahead);
    DotRows(tiles.x, tiles.dx, rows, p, dots);
    float factor[kChunkTokens];
    for (int64_t i = 0; i < rows; ++i) {
      factor[i] = steps.to_end[i] * steps.step[i];
      gradients.step[i] += steps.to_end[i] * dots[i];
      gradients.log_decay[i] -= factor[i] * dots[i];
      whole += factor[i] * dots[i];
    }
    Product<true>(rows, p, LowerLeftTransposed{rows}, weights, dy,
                  FromScaledRows{factor, {tiles.dx, p}}, {tiles.dx, p}, ahead);
    ScaleRows(tiles.x, factor, rows, p, tiles.scaled);
    Product<false>(rows, n, All{p}, {tiles.scaled, p}, {dstate, n}, FromMatrix{{tiles.db, n}},
                   {tiles.db, n}, ahead);
    if (!chunk.first) whole += steps.whole * DotAll(dstate, state, n * p);
  }
  if (!chunk.first) {
    ScaleRows(tiles.dy, steps.from_begin, rows, p, tiles.scaled);
    Product<false>(rows, n, All{p}, {tiles.scaled, p}, {state, n}, FromZero(), {tiles.read, n},
                   ahead);
    DotRows(group.c, tiles.read, rows, n, dots);
    for (int64_t i = 0; i < rows; ++i) gradients.log_decay[i] += dots[i];
    AddAll(tiles.read, rows * n, tiles.dc);
    CarryOuterProducts(rows, {tiles.scaled, p}, {group.c, n}, steps.whole,
                       {chunk.last ? nullptr : dstate, n}, {dstate, n}, ahead);
  }
  // The decay up to a token has the steps up to it.
  float of_raw[kChunkTokens];
  for (int64_t i = 0; i < kChunkTokens; i += kLanes)
    Store(of_raw + i, Sigmoid(Load(steps.raw + i)));
  float behind = whole, drate = 0, dbias = 0;
  for (int64_t i = chunk.count - 1; i >= 0; --i) {
    behind += gradients.log_decay[i];
    const float dstep = gradients.step[i] - steps.rate * behind;
    drate -= steps.step[i] * behind;
    const float draw = dstep * of_raw[i];
    dbias += draw;
    Narrow(tiles.dx + i * p, problem.channels, 1,
           At<T>(problem.dx, chunk.begin + i, number, of_group));
    StoreElement<T>(problem.dstep, chunk.begin + i, number, of_group, draw);
  }
  sums[0] += dbias;
  sums[1] += drate * steps.rate;
  sums[2] += DotAll(tiles.dy, tiles.x, rows * p);
}

// Writes the gradients of B and C in a chunk, or what one of several blocks of heads has of them.
template <typename T>
void WriteGroup(const StateSpaceProblem& problem, const TokenChunk& chunk, int64_t first_head,
                const BackwardTiles& tiles) {
  const Sizes sizes(problem);
  const HeadBlocks blocks = HeadBlocksOf(problem);
  const int64_t n = sizes.n, group = first_head / problem.group_heads;
  if (blocks.count == 1) {
    for (int64_t i = 0; i < chunk.count; ++i) {
      const int64_t token = chunk.begin + i;
      Narrow(tiles.db + i * n, problem.state, 1, At<T>(problem.db, token, group, 0));
      Narrow(tiles.dc + i * n, problem.state, 1, At<T>(problem.dc, token, group, 0));
    }
    return;
  }
  const int64_t block = first_head % problem.group_heads / blocks.heads;
  for (int64_t i = 0; i < chunk.count; ++i) {
    float* const out = BlockRow(problem, chunk.begin + i, group, block);
    for (int64_t d = 0; d < n; d += kLanes) {
      Store(out + d, Load(tiles.db + i * n + d));
      Store(out + n + d, Load(tiles.dc + i * n + d));
    }
  }
}

template <typename T>
void Backward(const T*, const StateSpaceProblem& problem, const HeadsOfSequence& part,
              float* scratch) {
  const Sizes sizes(problem);
  const int64_t n = sizes.n, p = sizes.p, first_head = part.first_head;
  const int64_t heads = problem.groups * problem.group_heads;
  float* const sums = problem.sums + 3 * (part.begin * heads + first_head);
  for (int64_t i = 0; i < 3 * (part.end_head - first_head); ++i) sums[i] = 0;
  Pieces pieces(scratch);
  GroupTiles group = TakeGroup(problem, &pieces);
  const BackwardTiles tiles = TakeBackward(problem, &pieces);
  float* const dstates = pieces.Take(0);
  const int64_t chunks = (part.end - part.begin + kChunkTokens - 1) / kChunkTokens;
  const int64_t number = first_head / problem.group_heads;
  const auto chunk_of = [&](int64_t c) {
    return ChunkAt(part.begin, part.end, part.begin + c * kChunkTokens);
  };
  Ahead ahead;
  for (int64_t c = chunks - 1; c >= 0; --c) {
    const TokenChunk chunk = chunk_of(c);
    PackGroup<T>(problem, chunk, number, &group, &ahead);
    const int64_t rows = group.rows;
    Clear(rows * rows, tiles.dcb);
    Clear(rows * n, tiles.db);
    Clear(rows * n, tiles.dc);
    for (int64_t head = first_head; head < part.end_head; ++head) {
      const bool in_chunk = head + 1 < part.end_head;
      if (in_chunk || c > 0) {
        const TokenChunk next = in_chunk ? chunk : chunk_of(c - 1);
        const int64_t next_head = in_chunk ? head + 1 : first_head;
        const int64_t of_group = next_head % problem.group_heads;
        const ChunkOperand* const of_head[] = {&problem.x, &problem.dy, &problem.dx};
        for (const ChunkOperand* x : of_head)
          FetchRows<T>(*x, next, number, of_group, problem.channels, &ahead);
        if (!next.first)
          FetchState(StateAt(problem, n * p, PlaceOf(next), next_head), n * p, &ahead);
      }
      if (head == first_head)
        FetchGroup<T>(problem, {problem.db, problem.dc, problem.dstep}, chunk, number, &ahead);
      if (head == first_head && c > 0) {
        FetchGroup<T>(problem, {problem.b, problem.c, problem.decay.raw}, chunk_of(c - 1), number,
                      &ahead);
      }
      const int64_t i = head - first_head;
      BackwardHead<T>(problem, chunk, head, group, tiles, dstates + i * n * p, sums + 3 * i,
                      &ahead);
    }
    const Matrix<const float> dcb = {tiles.dcb, rows};
    Product<true>(rows, n, LowerLeftTransposed{rows}, dcb, {group.c, n}, FromMatrix{{tiles.db, n}},
                  {tiles.db, n}, &ahead);
    Product<false>(rows, n, LowerLeft(), dcb, {group.b, n}, FromMatrix{{tiles.dc, n}},
                   {tiles.dc, n}, &ahead);
    WriteGroup<T>(problem, chunk, first_head, tiles);
  }
}

template <typename T>
void AddBlocks(const T*, const StateSpaceProblem& problem, int64_t token, int64_t group) {
  const Sizes sizes(problem);
  const HeadBlocks blocks = HeadBlocksOf(problem);
  float* const sum = BlockRow(problem, token, group, 0);
  for (int64_t block = 1; block < blocks.count; ++block)
    AddAll(BlockRow(problem, token, group, block), 2 * sizes.n, sum);
  Narrow(sum, problem.state, 1, At<T>(problem.db, token, group, 0));
  Narrow(sum + sizes.n, problem.state, 1, At<T>(problem.dc, token, group, 0));
}

}  // namespace

void StateSpaceForward(const StateSpaceProblem& problem, const HeadsOfSequence& part,
                       float* scratch) {
  const FlushDenormals flush;
  WithType(problem.dtype, [&](auto* type) { Forward(type, problem, part, scratch); });
}

void StateSpaceBackward(const StateSpaceProblem& problem, const HeadsOfSequence& part,
                        float* scratch) {
  if (part.begin == part.end) return;
  const FlushDenormals flush;
  WithType(problem.dtype, [&](auto* type) {
    Carry(type, problem, part, scratch);
    Backward(type, problem, part, scratch);
  });
}

void StateSpaceAddBlocks(const StateSpaceProblem& problem, int64_t token, int64_t group) {
  const FlushDenormals flush;
  WithType(problem.dtype, [&](auto* type) { AddBlocks(type, problem, token, group); });
}

void StateSpaceContinue(const StateSpaceProblem& problem, const StatePortion& portion, int64_t head,
                        float* scratch) {
  const FlushDenormals flush;
  WithType(problem.dtype, [&](auto* type) { Continue(type, problem, portion, head, scratch); });
}

}  // namespace megatron::ops::MEGATRON_ISA
