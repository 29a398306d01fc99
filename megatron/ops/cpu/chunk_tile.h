// A chunk's tokens as packed matrices, the decay of states over them, and systems of matrices that
// are zero behind the diagonal.
//
// Only sources of cpu_kernel_library include it (see vec.h).
#ifndef MEGATRON_OPS_CPU_CHUNK_TILE_H_
#define MEGATRON_OPS_CPU_CHUNK_TILE_H_

#include <cstdint>

#include "megatron/ops/cpu/activation_vec.h"
#include "megatron/ops/cpu/attention_tile.h"
#include "megatron/ops/cpu/chunk_product.h"
#include "megatron/ops/cpu/packed_rows.h"
#include "megatron/ops/cpu/token_chunks.h"
#include "megatron/ops/cpu/vec.h"

namespace megatron::ops::MEGATRON_ISA {

// Takes pieces of scratch memory one after the other.
class Pieces {
 public:
  explicit Pieces(float* scratch) : next_(scratch) {}
  float* Take(int64_t count) {
    float* const piece = next_;
    next_ += count;
    return piece;
  }

 private:
  float* next_;
};

// While it lives, its thread takes numbers below the least normal one, 2^-126, for zeros, as
// operands and as results. Decays over a chunk reach such numbers, with which processors are slow.
class FlushDenormals {
 public:
  MEGATRON_INLINE_MEMBER FlushDenormals() : saved_(_mm_getcsr()) {
    constexpr unsigned kResults = 1u << 15, kOperands = 1u << 6;
    _mm_setcsr(saved_ | kResults | kOperands);
  }
  MEGATRON_INLINE_MEMBER ~FlushDenormals() { _mm_setcsr(saved_); }
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
  unsigned saved_;
};

template <typename T>
T* At(const ChunkOperand& x, int64_t token, int64_t group, int64_t head) {
  return static_cast<T*>(x.data) + token * x.token_stride + group * x.group_stride +
         head * x.head_stride;
}

MEGATRON_INLINE float First(const float* x) { return *x; }
template <typename T>
MEGATRON_INLINE float First(const T* x) {
  return Sum(LoadPartial(x, 1));
}

template <typename T>
float ElementOf(const void* x, int64_t i) {
  return First(static_cast<const T*>(x) + i);
}

template <typename T>
void StoreElement(const ChunkOperand& x, int64_t token, int64_t group, int64_t head, float value) {
  StorePartial(At<T>(x, token, group, head), Set(value), 1);
}

// ln(1 + exp(x)), where 1 + exp(-|x|) may be rounded to 1.
MEGATRON_INLINE Vec Softplus(Vec x) {
  const Vec u = Exp(Zero() - Abs(x)), w = Set(1.0f) + u, d = w - Set(1.0f);
  const Vec log = Select(Less(Zero(), d), Log(w) * (u / d), u);
  return Max(Zero(), x) + log;
}

// A chunk that is not the first of its sequence has a place among the states at the beginnings of
// chunks: that of the kChunkTokens rows of the batch in which it begins, where no other such chunk
// does.
inline int64_t PlaceOf(const TokenChunk& chunk) { return chunk.begin / kChunkTokens; }
inline int64_t NextPlaceOf(const TokenChunk& chunk) {
  return (chunk.begin + kChunkTokens) / kChunkTokens;
}

// The state of `size` numbers that a head has at a place.
template <typename Problem>
float* StateAt(const Problem& problem, int64_t size, int64_t place, int64_t head) {
  return problem.states + (place * problem.groups * problem.group_heads + head) * size;
}

inline TokenChunk ChunkAt(int64_t begin, int64_t end, int64_t at) {
  TokenChunk chunk;
  chunk.begin = at;
  chunk.count = end - at < kChunkTokens ? end - at : kChunkTokens;
  chunk.first = at == begin;
  chunk.last = at + chunk.count == end;
  return chunk;
}

// The decay of a head's state over some of a chunk's tokens. Behind the last token steps are 0.
struct Decays {
  float raw[kChunkTokens];   // with the bias
  float step[kChunkTokens];  // softplus of it
  // Logarithm of the decay from the chunk's beginning, the token's own step included.
  float log_decay[kChunkTokens];
  float from_begin[kChunkTokens];  // the same decay
  float to_end[kChunkTokens];      // the decay behind the token
  float rate;                      // exp(a_log)
  float whole;                     // the decay over the chunk
};

template <typename T>
void FillDecays(const DecayOperands& in, int64_t group_heads, const TokenChunk& chunk, int64_t head,
                Decays* decays) {
  const int64_t group = head / group_heads, of_group = head % group_heads;
  const float bias = ElementOf<T>(in.bias, head);
  for (int64_t i = 0; i < kChunkTokens; ++i) decays->raw[i] = 0;
  for (int64_t i = 0; i < chunk.count; ++i)
    decays->raw[i] = ElementOf<T>(At<T>(in.raw, chunk.begin + i, group, of_group), 0) + bias;
  for (int64_t i = 0; i < kChunkTokens; i += kLanes)
    Store(decays->step + i, Softplus(Load(decays->raw + i)));
  for (int64_t i = chunk.count; i < kChunkTokens; ++i) decays->step[i] = 0;
  decays->rate = __builtin_expf(ElementOf<T>(in.a_log, head));
  float sum = 0;
  for (int64_t i = 0; i < kChunkTokens; ++i) {
    sum -= decays->step[i] * decays->rate;
    decays->log_decay[i] = sum;
  }
  for (int64_t i = 0; i < kChunkTokens; i += kLanes) {
    const Vec log_decay = Load(decays->log_decay + i);
    Store(decays->from_begin + i, Exp(log_decay));
    Store(decays->to_end + i, Exp(Set(sum) - log_decay));
  }
  decays->whole = decays->from_begin[kChunkTokens - 1];
}

// p[0, count) = 0, for any count.
inline void ClearState(int64_t count, float* p) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) Store(p + i, Zero());
  if (i < count) StorePartial(p + i, Zero(), static_cast<int>(count - i));
}

// The step and the decay of a head's state at one token.
struct TokenDecay {
  float step, decay;
};

template <typename T>
TokenDecay DecayAt(const DecayOperands& in, int64_t token, int64_t group, int64_t of_group,
                   int64_t head) {
  const float raw =
      ElementOf<T>(At<T>(in.raw, token, group, of_group), 0) + ElementOf<T>(in.bias, head);
  float step[kLanes], decay[kLanes];
  Store(step, Softplus(Set(raw)));
  Store(decay, Exp(Set(-step[0] * __builtin_expf(ElementOf<T>(in.a_log, head)))));
  return {step[0], decay[0]};
}

// Returns the decay of the state from behind the tokens j + lane to the i-th; 0 for tokens behind
// the i-th.
MEGATRON_INLINE Vec DecayBetween(const Decays& decays, int64_t i, int64_t j) {
  const int seen = i + 1 - j < kLanes ? static_cast<int>(i + 1 - j) : kLanes;
  const Vec decay = Exp(Set(decays.log_decay[i]) - Load(decays.log_decay + j));
  return Select(FirstLanes(seen), decay, Zero());
}

// Returns x of the tokens j + lane in front of the i-th; 0 for the others. No decay lies between a
// token and itself: its part of the decays' gradients would cancel but for rounding errors, which
// may be larger than the parts of the others.
MEGATRON_INLINE Vec InFrontOf(int64_t i, int64_t j, Vec x) {
  const int seen = i - j < kLanes ? static_cast<int>(i - j) : kLanes;
  return Select(FirstLanes(seen), x, Zero());
}

// Writes zeros behind the diagonal of row i, as far as products take them for zeros: those of
// LowerLeft and LowerLeftTransposed. Up to there the row's vectors are written already.
MEGATRON_INLINE void ClearBehind(int64_t rows, int64_t i, float* matrix) {
  const int64_t j = (i / kLanes + 1) * kLanes;
  if (j < rows) Store(matrix + i * rows + j, Zero());
}

// Packs a chunk's rows of one head or group, each times its factor if there are factors, with zeros
// behind them.
template <typename T>
void Pack(const ChunkOperand& x, const TokenChunk& chunk, int64_t group, int64_t head,
          int64_t width, int64_t padded, float* out, const float* factor = nullptr) {
  for (int64_t i = 0; i < chunk.count; ++i)
    Widen(At<T>(x, chunk.begin + i, group, head), width, factor == nullptr ? 1 : factor[i], padded,
          out + i * padded);
  Clear((PaddedChunk(chunk.count) - chunk.count) * padded, out + chunk.count * padded);
}

// Fetches the rows that Pack would read, or a chunk's rows that are written.
template <typename T>
void FetchRows(const ChunkOperand& x, const TokenChunk& chunk, int64_t group, int64_t head,
               int64_t width, Ahead* ahead) {
  constexpr int64_t kBytes = sizeof(T);
  ahead->Add(At<T>(x, chunk.begin, group, head), chunk.count, width * kBytes,
             x.token_stride * kBytes);
}

// Fetches a head's state of `count` numbers.
inline void FetchState(const float* state, int64_t count, Ahead* ahead) {
  constexpr int64_t kBytes = sizeof(float);
  ahead->Add(state, 1, count * kBytes, count * kBytes);
}

// out = each row of `in` times its factor.
inline void ScaleRows(const float* in, const float* factor, int64_t rows, int64_t width,
                      float* out) {
  for (int64_t i = 0; i < rows; ++i) {
    const Vec f = Set(factor[i]);
    for (int64_t d = 0; d < width; d += kLanes)
      Store(out + i * width + d, Load(in + i * width + d) * f);
  }
}

// Sums that do not wait for each other.
constexpr int kDots = 4;

// out[i] = the product of the i-th rows of a and b; rows is a multiple of kDots.
inline void DotRows(const float* a, const float* b, int64_t rows, int64_t width, float* out) {
  for (int64_t i = 0; i < rows; i += kDots) {
    Vec sum[kDots] = {Zero(), Zero(), Zero(), Zero()};
    for (int64_t d = 0; d < width; d += kLanes) {
#pragma GCC unroll 4
      for (int r = 0; r < kDots; ++r) {
        const int64_t at = (i + r) * width + d;
        sum[r] = Fma(Load(a + at), Load(b + at), sum[r]);
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < kDots; ++r) out[i + r] = Sum(sum[r]);
  }
}

// Returns the product of two packed matrices as vectors; count is a multiple of kDots kLanes.
inline float DotAll(const float* a, const float* b, int64_t count) {
  Vec sum[kDots] = {Zero(), Zero(), Zero(), Zero()};
  for (int64_t i = 0; i < count; i += kDots * kLanes) {
#pragma GCC unroll 4
    for (int r = 0; r < kDots; ++r) {
      const int64_t at = i + r * kLanes;
      sum[r] = Fma(Load(a + at), Load(b + at), sum[r]);
    }
  }
  return Sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

// out = factor in; the two may be the same.
inline void ScaleAll(const float* in, float factor, int64_t count, float* out) {
  for (int64_t i = 0; i < count; i += kLanes) Store(out + i, Load(in + i) * Set(factor));
}

inline void AddAll(const float* in, int64_t count, float* out) {
  for (int64_t i = 0; i < count; i += kLanes) Store(out + i, Load(out + i) + Load(in + i));
}

// behind[left width, right width] = decay before + over rows, the outer products of rows of the
// two. `before` may be `behind`; without data there is nothing to decay.
inline void CarryOuterProducts(int64_t rows, Matrix<const float> left, Matrix<const float> right,
                               float decay, Matrix<const float> before, Matrix<float> behind,
                               Ahead* ahead) {
  if (before.data == nullptr) {
    Product<true>(left.stride, right.stride, All{rows}, left, right, FromZero(), behind, ahead);
  } else {
    const FromScaled start = {decay, before};
    Product<true>(left.stride, right.stride, All{rows}, left, right, start, behind, ahead);
  }
}

// Solves kVecs vectors' columns of the systems below, a tile of rows after the other.
template <int kVecs, bool kUpper>
void SolveColumns(int64_t rows, int64_t width, const float* a, float* x) {
  // The factor of row j in the sum of row i.
  const auto factor = [&](int64_t i, int64_t j) {
    return Set(kUpper ? a[j * rows + i] : a[i * rows + j]);
  };
  for (int64_t done = 0; done < rows; done += kTileRows) {
    const int64_t m = kUpper ? rows - kTileRows - done : done;
    Vec sum[kTileRows][kVecs];
#pragma GCC unroll 8
    for (int i = 0; i < kTileRows; ++i) {
#pragma GCC unroll 2
      for (int v = 0; v < kVecs; ++v) sum[i][v] = Load(x + (m + i) * width + v * kLanes);
    }
    const int64_t solved = kUpper ? m + kTileRows : 0;
    for (int64_t j = solved; j < solved + done; ++j) {
      Vec right[kVecs];
#pragma GCC unroll 2
      for (int v = 0; v < kVecs; ++v) right[v] = Load(x + j * width + v * kLanes);
#pragma GCC unroll 8
      for (int i = 0; i < kTileRows; ++i) {
        const Vec left = factor(m + i, j);
#pragma GCC unroll 2
        for (int v = 0; v < kVecs; ++v) sum[i][v] = NegatedFma(left, right[v], sum[i][v]);
      }
    }
#pragma GCC unroll 8
    for (int k = 0; k < kTileRows; ++k) {
      const int j = kUpper ? static_cast<int>(kTileRows) - 1 - k : k;
#pragma GCC unroll 8
      for (int i = 0; i < kTileRows; ++i) {
        if (kUpper ? i >= j : i <= j) continue;
        const Vec left = factor(m + i, m + j);
#pragma GCC unroll 2
        for (int v = 0; v < kVecs; ++v) sum[i][v] = NegatedFma(left, sum[j][v], sum[i][v]);
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < kTileRows; ++i) {
#pragma GCC unroll 2
      for (int v = 0; v < kVecs; ++v) Store(x + (m + i) * width + v * kLanes, sum[i][v]);
    }
  }
}

// Solves (1 + a) x = x in place, or the same with the transpose of a [rows, rows], of which only
// what lies in front of the diagonal is read. Rows of x are `width` long, whole vectors.
template <bool kUpper>
void Solve(int64_t rows, int64_t width, const float* a, float* x) {
  int64_t n = 0;
  for (; n + 2 * kLanes <= width; n += 2 * kLanes) SolveColumns<2, kUpper>(rows, width, a, x + n);
  if (n < width) SolveColumns<1, kUpper>(rows, width, a, x + n);
}

}  // namespace megatron::ops::MEGATRON_ISA

#endif  // MEGATRON_OPS_CPU_CHUNK_TILE_H_
