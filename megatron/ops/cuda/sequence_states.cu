// What goes on with the states of sequences, a token at a time. A thread has a channel of a
// convolution, or a column of a head's state, of one sequence, and shares nothing with others.
#include <type_traits>

#include "megatron/ops/causal_conv.h"
#include "megatron/ops/cuda/device.cuh"
#include "megatron/ops/cuda/kernel_table.h"
#include "megatron/ops/gated_delta.h"
#include "megatron/ops/state_space.h"

namespace megatron::ops::cuda {
namespace {

constexpr int kStateThreads = 64;
constexpr float kEpsilon = 1e-6f;  // added to the sum of squares of a query or key (gated_delta.h)

// A tensor [token, group, head of the group, width], or without heads.
template <typename T>
struct Rows {
  const T* data = nullptr;
  int64_t token_stride = 0, group_stride = 0, head_stride = 0;

  __device__ const T* Of(int64_t token, int64_t group, int64_t of_group) const {
    return data + token * token_stride + group * group_stride + of_group * head_stride;
  }
};

template <typename T>
Rows<T> RowsOf(T* type, const Tensor& x) {
  return {As(type, x), x.stride(0), x.stride(1), x.rank() == 4 ? x.stride(2) : 0};
}

// One number of each head, [token, group, head of the group].
template <typename T>
Rows<T> NumbersOf(T* type, const Tensor& x_TGR) {
  return {As(type, x_TGR), x_TGR.stride(0), x_TGR.stride(1), 1};
}

// The new tokens of each sequence.
struct Portions {
  const int32_t *begins, *position;

  __device__ bool IsFirst(int64_t token) const { return position[token] == 0; }
};

Portions PortionsOf(const Tensor& cu_seqlens, const Tensor& position_T) {
  return {cu_seqlens.data<int32_t>(), position_T.data<int32_t>()};
}

__device__ float Softplus(float x) { return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))); }

template <typename T>
struct ConvArgs {
  Portions portions;
  int64_t sequences, groups, channels;  // channels of a group
  int taps;
  Rows<T> x;
  const T *weight, *bias;  // bias may be null
  T *recent, *y;
};

template <typename T>
__global__ void __launch_bounds__(kThreads) ContinueConv(ConvArgs<T> args) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t all = args.groups * args.channels, sequence = i / all, channel = i % all;
  if (sequence >= args.sequences) return;
  const int64_t begin = args.portions.begins[sequence], end = args.portions.begins[sequence + 1];
  if (begin == end) return;
  const int before = args.taps - 1;
  T* const recent = args.recent + sequence * before * all + channel;
  float window[kMostConvTaps];  // the inputs up to a token's own
  const bool is_first = args.portions.IsFirst(begin);
  for (int k = 0; k < before; ++k) window[k] = is_first ? 0.0f : ToFloat(recent[k * all]);
  const float bias = args.bias == nullptr ? 0.0f : ToFloat(args.bias[channel]);
  for (int64_t t = begin; t < end; ++t) {
    window[before] = ToFloat(args.x.Of(t, channel / args.channels, 0)[channel % args.channels]);
    float sum = bias;
    for (int k = 0; k < args.taps; ++k)
      sum = fmaf(ToFloat(args.weight[channel * args.taps + k]), window[k], sum);
    args.y[t * all + channel] = FromFloat<T>(sum / (1.0f + expf(-sum)));
    for (int k = 0; k < before; ++k) window[k] = window[k + 1];
  }
  for (int k = 0; k < before; ++k) recent[k * all] = FromFloat<T>(window[k]);
}

// What the decay of a head's state is made of.
template <typename T>
struct DecayArgs {
  Rows<T> raw;
  const T *bias, *a_log;

  __device__ float Step(int64_t token, int64_t group, int64_t of_group, int64_t head) const {
    return Softplus(ToFloat(raw.Of(token, group, of_group)[0]) + ToFloat(bias[head]));
  }
  __device__ float Decay(float step, int64_t head) const {
    return expf(-step * expf(ToFloat(a_log[head])));
  }
};

template <typename T>
struct StateSpaceArgs {
  Portions portions;
  int64_t groups, group_heads, channels, state;
  Rows<T> x, b, c;
  DecayArgs<T> decay;
  const T* skip;
  float* states;
  T* y;
};

template <typename T>
__global__ void __launch_bounds__(kStateThreads) ContinueStateSpace(StateSpaceArgs<T> args) {
  const int64_t heads = args.groups * args.group_heads, sequence = blockIdx.x / heads;
  const int64_t head = blockIdx.x % heads;
  const int64_t group = head / args.group_heads, of_group = head % args.group_heads;
  const int64_t begin = args.portions.begins[sequence], end = args.portions.begins[sequence + 1];
  if (begin == end) return;
  const bool is_first = args.portions.IsFirst(begin);
  float* const states = args.states + static_cast<int64_t>(blockIdx.x) * args.state * args.channels;
  for (int64_t d = threadIdx.x; d < args.channels; d += kStateThreads) {
    for (int64_t t = begin; t < end; ++t) {
      const bool is_empty = is_first && t == begin;
      const float step = args.decay.Step(t, group, of_group, head);
      const float decay = args.decay.Decay(step, head);
      const float x = ToFloat(args.x.Of(t, group, of_group)[d]);
      const T *const b = args.b.Of(t, group, 0), *const c = args.c.Of(t, group, 0);
      float y = 0;
      for (int64_t n = 0; n < args.state; ++n) {
        float* const element = states + n * args.channels + d;
        const float s = fmaf(step * ToFloat(b[n]), x, is_empty ? 0.0f : decay * *element);
        *element = s;
        y = fmaf(ToFloat(c[n]), s, y);
      }
      args.y[(t * heads + head) * args.channels + d] =
          FromFloat<T>(fmaf(ToFloat(args.skip[head]), x, y));
    }
  }
}

template <typename T>
struct GatedDeltaArgs {
  Portions portions;
  int64_t groups, group_heads, key, value;
  Rows<T> q, k, v, beta;
  DecayArgs<T> decay;
  float* states;
  T* out;
};

// The reciprocal of a vector's norm.
template <typename T>
__device__ float NormOf(const T* x, int64_t width) {
  float sum = 0;
  for (int64_t i = 0; i < width; ++i) sum = fmaf(ToFloat(x[i]), ToFloat(x[i]), sum);
  return 1.0f / sqrtf(sum + kEpsilon);
}

template <typename T>
__global__ void __launch_bounds__(kStateThreads) ContinueGatedDelta(GatedDeltaArgs<T> args) {
  const int64_t heads = args.groups * args.group_heads, sequence = blockIdx.x / heads;
  const int64_t head = blockIdx.x % heads;
  const int64_t group = head / args.group_heads, of_group = head % args.group_heads;
  const int64_t begin = args.portions.begins[sequence], end = args.portions.begins[sequence + 1];
  if (begin == end) return;
  const bool is_first = args.portions.IsFirst(begin);
  const float scale = 1.0f / sqrtf(static_cast<float>(args.key));
  float* const states = args.states + static_cast<int64_t>(blockIdx.x) * args.key * args.value;
  for (int64_t e = threadIdx.x; e < args.value; e += kStateThreads) {
    for (int64_t t = begin; t < end; ++t) {
      const bool is_empty = is_first && t == begin;
      const T *const q = args.q.Of(t, group, 0), *const k = args.k.Of(t, group, 0);
      const float q_factor = NormOf(q, args.key) * scale, k_factor = NormOf(k, args.key);
      const float decay = args.decay.Decay(args.decay.Step(t, group, of_group, head), head);
      const float beta = 1.0f / (1.0f + expf(-ToFloat(args.beta.Of(t, group, of_group)[0])));
      float read = 0;
      for (int64_t i = 0; i < args.key; ++i) {
        float* const element = states + i * args.value + e;
        const float s = is_empty ? 0.0f : decay * *element;
        *element = s;
        read = fmaf(ToFloat(k[i]) * k_factor, s, read);
      }
      const float written = beta * (ToFloat(args.v.Of(t, group, of_group)[e]) - read);
      float out = 0;
      for (int64_t i = 0; i < args.key; ++i) {
        float* const element = states + i * args.value + e;
        const float s = fmaf(ToFloat(k[i]) * k_factor, written, *element);
        *element = s;
        out = fmaf(ToFloat(q[i]) * q_factor, s, out);
      }
      args.out[(t * heads + head) * args.value + e] = FromFloat<T>(out);
    }
  }
}

}  // namespace

void CausalConvContinue(const Stream& stream, const Tensor& cu_seqlens, const Tensor& position_T,
                        const CausalConvInputs& in, const Tensor& recent_SWGK,
                        const Tensor& y_TGK) {
  if (in.x_TGK.numel() == 0) return;
  WithType(in.x_TGK.dtype(), [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    ConvArgs<T> args;
    args.portions = PortionsOf(cu_seqlens, position_T);
    args.sequences = cu_seqlens.dim(0) - 1;
    args.groups = in.x_TGK.dim(1);
    args.channels = in.x_TGK.dim(2);
    args.taps = static_cast<int>(in.weight_GKW.dim(2));
    args.x = RowsOf(type, in.x_TGK);
    args.weight = As(type, in.weight_GKW);
    args.bias = As(type, in.bias_GK);
    args.recent = As(type, recent_SWGK);
    args.y = As(type, y_TGK);
    const int64_t threads = args.sequences * args.groups * args.channels;
    ContinueConv<T><<<Blocks(threads, kThreads), kThreads, 0, Handle(stream)>>>(args);
  });
  CheckLaunched("convolutions that go on");
}

void StateSpaceContinue(const Stream& stream, const Tensor& cu_seqlens, const Tensor& position_T,
                        const StateSpaceInputs& in, const Tensor& state_SHNP,
                        const Tensor& y_TGRP) {
  if (in.x_TGRP.numel() == 0) return;
  WithType(in.x_TGRP.dtype(), [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    StateSpaceArgs<T> args;
    args.portions = PortionsOf(cu_seqlens, position_T);
    args.groups = in.x_TGRP.dim(1);
    args.group_heads = in.x_TGRP.dim(2);
    args.channels = in.x_TGRP.dim(3);
    args.state = in.b_TGN.dim(2);
    args.x = RowsOf(type, in.x_TGRP);
    args.b = RowsOf(type, in.b_TGN);
    args.c = RowsOf(type, in.c_TGN);
    args.decay = {NumbersOf(type, in.step_TGR), As(type, in.step_bias_H), As(type, in.a_log_H)};
    args.skip = As(type, in.skip_H);
    args.states = state_SHNP.data<float>();
    args.y = As(type, y_TGRP);
    const int64_t blocks = (cu_seqlens.dim(0) - 1) * args.groups * args.group_heads;
    ContinueStateSpace<T><<<Blocks(blocks, 1), kStateThreads, 0, Handle(stream)>>>(args);
  });
  CheckLaunched("states that go on");
}

void GatedDeltaContinue(const Stream& stream, const Tensor& cu_seqlens, const Tensor& position_T,
                        const GatedDeltaInputs& in, const Tensor& state_SHKE,
                        const Tensor& out_TGRE) {
  if (in.v_TGRE.numel() == 0) return;
  WithType(in.v_TGRE.dtype(), [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    GatedDeltaArgs<T> args;
    args.portions = PortionsOf(cu_seqlens, position_T);
    args.groups = in.v_TGRE.dim(1);
    args.group_heads = in.v_TGRE.dim(2);
    args.key = in.k_TGK.dim(2);
    args.value = in.v_TGRE.dim(3);
    args.q = RowsOf(type, in.q_TGK);
    args.k = RowsOf(type, in.k_TGK);
    args.v = RowsOf(type, in.v_TGRE);
    args.beta = NumbersOf(type, in.beta_TGR);
    args.decay = {NumbersOf(type, in.decay_TGR), As(type, in.bias_H), As(type, in.a_log_H)};
    args.states = state_SHKE.data<float>();
    args.out = As(type, out_TGRE);
    const int64_t blocks = (cu_seqlens.dim(0) - 1) * args.groups * args.group_heads;
    ContinueGatedDelta<T><<<Blocks(blocks, 1), kStateThreads, 0, Handle(stream)>>>(args);
  });
  CheckLaunched("gated delta states that go on");
}

MEGATRON_CUDA_KERNEL(CausalConvContinue);
MEGATRON_CUDA_KERNEL(StateSpaceContinue);
MEGATRON_CUDA_KERNEL(GatedDeltaContinue);

}  // namespace megatron::ops::cuda
