#include "megatron/ops/cpu/causal_conv_kernels.h"

#include "megatron/ops/cpu/activation_vec.h"
#include "megatron/ops/cpu/loops.h"
#include "megatron/ops/cpu/vec.h"

namespace megatron::ops::MEGATRON_ISA {
namespace {

// The number of taps that models have.
constexpr int kUsualTaps = 4;

MEGATRON_INLINE void Fetch(const void* p) {
  _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0);
}

// The weights of a block by tap, and its biases, as fp32; rows of kConvChannels.
template <typename T>
struct Taps {
  float *weight, *bias;

  Taps(const ConvProblem& problem, int64_t group, int64_t first, int64_t count, float* scratch)
      : weight(scratch), bias(scratch + problem.taps * kConvChannels) {
    const T* const w =
        static_cast<const T*>(problem.weight) + (group * problem.channels + first) * problem.taps;
    const T* const b = static_cast<const T*>(problem.bias);
    for (int64_t c = 0; c < count; ++c) {
      for (int64_t i = 0; i < problem.taps; ++i)
        weight[i * kConvChannels + c] = Sum(LoadPartial(w + c * problem.taps + i, 1));
      bias[c] = b == nullptr ? 0 : Sum(LoadPartial(b + group * problem.channels + first + c, 1));
    }
  }
};

// A vector of channels goes through so many tokens at once. Meanwhile it fetches the lines that it
// needs of the next ones: a block has a short piece of each row, and rows lie far apart.
constexpr int64_t kTileTokens = 8;

// Tokens [begin, end) of a sequence that begins at `first`.
struct Tile {
  int64_t first, begin, end;
};

// One vector for each tap. kTaps is their number, or 0 where it is known at run time alone.
template <int kTaps>
struct PerTap {
  static constexpr int kSize = kTaps > 0 ? kTaps : kConvTaps;
  Vec vec[kSize];

  MEGATRON_INLINE_MEMBER void Push(int64_t taps, Vec last) {
#pragma GCC unroll 4
    for (int64_t i = 1; i < taps; ++i) vec[i - 1] = vec[i];
    vec[taps - 1] = last;
  }
};
template <int kTaps>
MEGATRON_INLINE int64_t CountOf(const ConvProblem& problem) {
  return kTaps > 0 ? kTaps : problem.taps;
}

// The rows that a token's convolution reads, at a vector of channels.
template <int kTaps>
struct Window {
  int64_t taps;
  Vec bias;
  PerTap<kTaps> weight, x;

  template <typename T, typename Access>
  MEGATRON_INLINE_MEMBER Window(const ConvProblem& problem, const Taps<T>& of_block, Access access,
                                const T* rows, const Tile& tile, int64_t c)
      : taps(CountOf<kTaps>(problem)), bias(access.load(of_block.bias + c)) {
#pragma GCC unroll 4
    for (int64_t i = 0; i < taps; ++i) {
      weight.vec[i] = access.load(of_block.weight + i * kConvChannels + c);
      // The first row moves out when the tile's first token comes.
      const int64_t token = tile.begin - taps + i;
      x.vec[i] = token < tile.first ? Zero() : access.load(rows + token * problem.token_stride + c);
    }
  }
  // Takes the next token's row and returns what stands in front of its SiLU.
  MEGATRON_INLINE_MEMBER Vec Next(Vec row) {
    x.Push(taps, row);
    Vec sum = bias;
#pragma GCC unroll 4
    for (int64_t i = 0; i < taps; ++i) sum = Fma(weight.vec[i], x.vec[i], sum);
    return sum;
  }
};

// Calls body(tile, end of the tile's sequence) for all sequences.
template <typename Body>
MEGATRON_INLINE void ForEachTile(const ConvProblem& problem, Body body) {
  for (int64_t s = 0; s < problem.sequences; ++s) {
    const int64_t first = problem.cu_seqlens[s], behind = problem.cu_seqlens[s + 1];
    for (int64_t begin = first; begin < behind; begin += kTileTokens)
      body(Tile{first, begin, begin + kTileTokens < behind ? begin + kTileTokens : behind}, behind);
  }
}

template <int kTaps, typename T>
void ForwardBlock(const ConvProblem& problem, const Taps<T>& taps, int64_t count, const T* x,
                  T* y) {
  ForEachTile(problem, [&](const Tile& tile, int64_t) {
    ForEachVec(count, [&](auto access, int64_t c) {
      Window<kTaps> window(problem, taps, access, x, tile, c);
      for (int64_t t = tile.begin; t < tile.end; ++t) {
        const T* const row = x + t * problem.token_stride + c;
        T* const out = y + t * problem.y_stride + c;
        Fetch(row + kTileTokens * problem.token_stride);
        Fetch(out + kTileTokens * problem.y_stride);
        access.store(out, Activate<Activation::kSilu>(window.Next(access.load(row))));
      }
    });
  });
}

template <typename T>
void Forward(const T*, const ConvProblem& problem, int64_t group, int64_t first, int64_t count,
             float* scratch) {
  const Taps<T> taps(problem, group, first, count, scratch);
  const T* const x = static_cast<const T*>(problem.x) + group * problem.group_stride + first;
  T* const y = static_cast<T*>(problem.y) + group * problem.channels + first;
  if (problem.taps == kUsualTaps) {
    ForwardBlock<kUsualTaps>(problem, taps, count, x, y);
  } else {
    ForwardBlock<0>(problem, taps, count, x, y);
  }
}

template <typename T>
void Continue(const T*, const ConvProblem& problem, const ConvPortion& portion, int64_t group,
              int64_t first, int64_t count, float* scratch) {
  const Taps<T> taps(problem, group, first, count, scratch);
  const int64_t before = problem.taps - 1, tokens = portion.end - portion.begin;
  const T* const x = static_cast<const T*>(problem.x) + group * problem.group_stride + first +
                     portion.begin * problem.token_stride;
  T* const y = static_cast<T*>(problem.y) + group * problem.channels + first +
               portion.begin * problem.y_stride;
  T* const recent = static_cast<T*>(portion.recent) + group * problem.channels + first;
  if (portion.anew) {
    for (int64_t i = 0; i < before; ++i) {
      ForEachVec(count, [&](auto access, int64_t c) {
        access.store(recent + i * problem.y_stride + c, Zero());
      });
    }
  }
  // The row of a token, counted from the portion's first one.
  const auto row = [&](int64_t token) {
    return token >= 0 ? x + token * problem.token_stride
                      : recent + (before + token) * problem.y_stride;
  };
  for (int64_t t = 0; t < tokens; ++t) {
    ForEachVec(count, [&](auto access, int64_t c) {
      Vec sum = access.load(taps.bias + c);
      for (int64_t i = 0; i < problem.taps; ++i)
        sum = Fma(access.load(taps.weight + i * kConvChannels + c),
                  access.load(row(t - before + i) + c), sum);
      access.store(y + t * problem.y_stride + c, Activate<Activation::kSilu>(sum));
    });
  }
  // Rows move towards the front, the front ones first.
  for (int64_t i = 0; i < before; ++i) {
    const T* const from = row(tokens - before + i);
    ForEachVec(count, [&](auto access, int64_t c) {
      access.store(recent + i * problem.y_stride + c, access.load(from + c));
    });
  }
}

// The sums of a block's gradients by tap, and the gradients in front of the SiLU of the tokens
// before a tile, the last one's last; rows of kConvChannels.
struct ConvSums {
  float *dweight, *dbias, *before;
};

template <int kTaps, typename T>
void BackwardBlock(const ConvProblem& problem, const Taps<T>& taps, int64_t count, const T* x,
                   const T* dy, const ConvSums& sums, T* dx) {
  ForEachTile(problem, [&](const Tile& tile, int64_t behind) {
    ForEachVec(count, [&](auto access, int64_t c) {
      Window<kTaps> window(problem, taps, access, x, tile, c);
      PerTap<kTaps> dweight, gradients;
      Vec dbias = access.load(sums.dbias + c);
#pragma GCC unroll 4
      for (int64_t i = 0; i < window.taps; ++i) {
        dweight.vec[i] = access.load(sums.dweight + i * kConvChannels + c);
        gradients.vec[i] =
            tile.begin == tile.first ? Zero() : access.load(sums.before + i * kConvChannels + c);
      }
      // The token `taps` - 1 in front of the last gradient's one has all of its gradient.
      const auto write = [&](int64_t last) {
        const int64_t token = last - window.taps + 1;
        if (token < tile.first) return;
        Vec sum = Zero();
#pragma GCC unroll 4
        for (int64_t i = 0; i < window.taps; ++i)
          sum = Fma(window.weight.vec[i], gradients.vec[window.taps - 1 - i], sum);
        access.store(dx + token * problem.token_stride + c, sum);
      };
      for (int64_t t = tile.begin; t < tile.end; ++t) {
        const T* const row = x + t * problem.token_stride + c;
        const T* const behind_it = dy + t * problem.y_stride + c;
        Fetch(row + kTileTokens * problem.token_stride);
        Fetch(behind_it + kTileTokens * problem.y_stride);
        Fetch(dx + (t + kTileTokens) * problem.token_stride + c);
        const Vec sum = window.Next(access.load(row));
        const Vec gradient = access.load(behind_it) * ActivationSlope<Activation::kSilu>(sum);
        dbias = dbias + gradient;
#pragma GCC unroll 4
        for (int64_t i = 0; i < window.taps; ++i)
          dweight.vec[i] = Fma(gradient, window.x.vec[i], dweight.vec[i]);
        gradients.Push(window.taps, gradient);
        write(t);
      }
      access.store(sums.dbias + c, dbias);
#pragma GCC unroll 4
      for (int64_t i = 0; i < window.taps; ++i) {
        access.store(sums.dweight + i * kConvChannels + c, dweight.vec[i]);
        access.store(sums.before + i * kConvChannels + c, gradients.vec[i]);
      }
      if (tile.end < behind) return;
      for (int64_t t = behind; t < behind + window.taps - 1; ++t) {
        gradients.Push(window.taps, Zero());
        write(t);
      }
    });
  });
}

template <typename T>
void Backward(const T*, const ConvProblem& problem, int64_t group, int64_t first, int64_t count,
              float* scratch) {
  const Taps<T> taps(problem, group, first, count, scratch);
  ConvSums sums;
  sums.dweight = scratch + (problem.taps + 1) * kConvChannels;
  sums.dbias = sums.dweight + problem.taps * kConvChannels;
  sums.before = sums.dbias + kConvChannels;
  for (int64_t i = 0; i < (problem.taps + 1) * kConvChannels; ++i) sums.dweight[i] = 0;
  const T* const x = static_cast<const T*>(problem.x) + group * problem.group_stride + first;
  T* const dx = static_cast<T*>(problem.dx) + group * problem.group_stride + first;
  const T* const dy = static_cast<const T*>(problem.y) + group * problem.channels + first;
  if (problem.taps == kUsualTaps) {
    BackwardBlock<kUsualTaps>(problem, taps, count, x, dy, sums, dx);
  } else {
    BackwardBlock<0>(problem, taps, count, x, dy, sums, dx);
  }
  for (int64_t c = 0; c < count; ++c) {
    const int64_t channel = group * problem.channels + first + c;
    for (int64_t i = 0; i < problem.taps; ++i)
      problem.dweight[channel * problem.taps + i] += sums.dweight[i * kConvChannels + c];
    if (problem.dbias != nullptr) problem.dbias[channel] += sums.dbias[c];
  }
}

}  // namespace

void CausalConvForward(const ConvProblem& problem, int64_t group, int64_t first, int64_t count,
                       float* scratch) {
  WithType(problem.dtype,
           [&](auto* type) { Forward(type, problem, group, first, count, scratch); });
}

void CausalConvBackward(const ConvProblem& problem, int64_t group, int64_t first, int64_t count,
                        float* scratch) {
  WithType(problem.dtype,
           [&](auto* type) { Backward(type, problem, group, first, count, scratch); });
}

void CausalConvContinue(const ConvProblem& problem, const ConvPortion& portion, int64_t group,
                        int64_t first, int64_t count, float* scratch) {
  WithType(problem.dtype,
           [&](auto* type) { Continue(type, problem, portion, group, first, count, scratch); });
}

}  // namespace megatron::ops::MEGATRON_ISA
