#include "megatron/ops/cpu/causal_conv_kernels.h"

#include "megatron/ops/cpu/activation_vec.h"
#include "megatron/ops/cpu/loops.h"
#include "megatron/ops/cpu/vec.h"

namespace megatron::ops::MEGATRON_ISA {
namespace {

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

// The convolution of channels [c, c + lanes) of the block at token t of a sequence that begins at
// `begin`, in front of the SiLU.
template <typename T, typename Access>
MEGATRON_INLINE Vec Convolved(const ConvProblem& problem, const Taps<T>& taps, Access access,
                              const T* x, int64_t begin, int64_t t, int64_t c) {
  Vec sum = access.load(taps.bias + c);
  int64_t i = t - begin < problem.taps - 1 ? problem.taps - 1 - (t - begin) : 0;
  for (; i < problem.taps; ++i) {
    const T* const row = x + (t - problem.taps + 1 + i) * problem.token_stride;
    sum = Fma(access.load(taps.weight + i * kConvChannels + c), access.load(row + c), sum);
  }
  return sum;
}

template <typename T>
void Forward(const T*, const ConvProblem& problem, int64_t group, int64_t first, int64_t count,
             float* scratch) {
  const Taps<T> taps(problem, group, first, count, scratch);
  const T* const x = static_cast<const T*>(problem.x) + group * problem.group_stride + first;
  T* const y = static_cast<T*>(problem.y) + group * problem.channels + first;
  for (int64_t s = 0; s < problem.sequences; ++s) {
    const int64_t begin = problem.cu_seqlens[s], end = problem.cu_seqlens[s + 1];
    for (int64_t t = begin; t < end; ++t) {
      ForEachVec(count, [&](auto access, int64_t c) {
        const Vec sum = Convolved(problem, taps, access, x, begin, t, c);
        access.store(y + t * problem.y_stride + c, Activate<Activation::kSilu>(sum));
      });
    }
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

template <typename T>
void Backward(const T*, const ConvProblem& problem, int64_t group, int64_t first, int64_t count,
              float* scratch) {
  const Taps<T> taps(problem, group, first, count, scratch);
  float* const dweight = scratch + (problem.taps + 1) * kConvChannels;
  float* const dbias = dweight + problem.taps * kConvChannels;
  // The gradients in front of the SiLU of the last tokens: token t's at t modulo taps.
  float* const recent = dbias + kConvChannels;
  for (int64_t i = 0; i < (problem.taps + 1) * kConvChannels; ++i) dweight[i] = 0;
  const T* const x = static_cast<const T*>(problem.x) + group * problem.group_stride + first;
  T* const dx = static_cast<T*>(problem.dx) + group * problem.group_stride + first;
  const T* const dy = static_cast<const T*>(problem.y) + group * problem.channels + first;
  for (int64_t s = 0; s < problem.sequences; ++s) {
    const int64_t begin = problem.cu_seqlens[s], end = problem.cu_seqlens[s + 1];
    // At t the gradient of token t - taps + 1 of x is complete; behind the end no more is added.
    for (int64_t t = begin; t < end + problem.taps - 1; ++t) {
      float* const of_token = recent + t % problem.taps * kConvChannels;
      const int64_t done = t - problem.taps + 1;
      const int64_t first_tap = done < begin ? begin - done : 0;
      // The gradients that each tap's weight takes to the token that is done.
      const float* of_tap[kConvTaps];
      for (int64_t i = 0; i < problem.taps; ++i)
        of_tap[i] = recent + (t + problem.taps - i) % problem.taps * kConvChannels;
      ForEachVec(count, [&](auto access, int64_t c) {
        Vec gradient = Zero();
        if (t < end) {
          const Vec sum = Convolved(problem, taps, access, x, begin, t, c);
          gradient =
              access.load(dy + t * problem.y_stride + c) * ActivationSlope<Activation::kSilu>(sum);
          access.store(dbias + c, access.load(dbias + c) + gradient);
          for (int64_t i = first_tap; i < problem.taps; ++i) {
            const T* const row = x + (t - problem.taps + 1 + i) * problem.token_stride;
            float* const out = dweight + i * kConvChannels + c;
            access.store(out, Fma(gradient, access.load(row + c), access.load(out)));
          }
        }
        access.store(of_token + c, gradient);
        if (done < begin) return;
        Vec total = Zero();
        for (int64_t i = 0; i < problem.taps; ++i) {
          total = Fma(access.load(taps.weight + i * kConvChannels + c), access.load(of_tap[i] + c),
                      total);
        }
        access.store(dx + done * problem.token_stride + c, total);
      });
    }
  }
  for (int64_t c = 0; c < count; ++c) {
    const int64_t channel = group * problem.channels + first + c;
    for (int64_t i = 0; i < problem.taps; ++i)
      problem.dweight[channel * problem.taps + i] += dweight[i * kConvChannels + c];
    if (problem.dbias != nullptr) problem.dbias[channel] += dbias[c];
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
