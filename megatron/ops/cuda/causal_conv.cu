// A thread has a channel and goes through some tokens. Weights are in the order of distances: the
// first meets the token itself.
#include <type_traits>

#include "megatron/ops/causal_conv.h"
#include "megatron/ops/cuda/activation.cuh"
#include "megatron/ops/cuda/chunks.cuh"
#include "megatron/ops/cuda/column_sums.cuh"
#include "megatron/ops/cuda/column_sums.h"
#include "megatron/ops/cuda/device.cuh"
#include "megatron/ops/cuda/kernel_table.h"

namespace megatron::ops::cuda {
namespace {

constexpr int64_t kTokensOfBlock = 32;

struct ConvArgs {
  Sequences sequences;
  int64_t tokens = 0, channels = 0, group_channels = 1;  // all channels, and those of a group
  int taps = 1;
  TokenRows x, dx;
  const void *weight = nullptr, *bias = nullptr;  // [channels, taps], [channels]; bias may be null
  void* y = nullptr;                              // [tokens, channels]; in backward its gradient
  // Sums of slices of the tokens: [slices, channels, taps] and [slices, channels].
  float *weight_sums = nullptr, *bias_sums = nullptr;
};

// The channel of a thread, with at most kTaps taps.
template <typename T, int kTaps>
class Channel {
 public:
  __device__ Channel(const ConvArgs& args, int64_t channel)
      : args_(args),
        group_(channel / args.group_channels),
        in_group_(channel % args.group_channels) {
    for (int k = 0; k < kTaps; ++k) {
      const T* const weights = static_cast<const T*>(args.weight) + channel * args.taps;
      weight_[k] = k < args.taps ? ToFloat(weights[args.taps - 1 - k]) : 0.0f;
    }
    bias_ = args.bias == nullptr ? 0.0f : ToFloat(static_cast<const T*>(args.bias)[channel]);
  }

  __device__ float X(int64_t token) const {
    return ToFloat(args_.x.Row<const T>(token, group_, 0)[in_group_]);
  }
  __device__ void StoreDx(int64_t token, float value) const {
    args_.dx.Row<T>(token, group_, 0)[in_group_] = FromFloat<T>(value);
  }
  __device__ float Weight(int k) const { return weight_[k]; }

  // Returns the convolution, in front of the SiLU, at a token of a sequence that begins at `begin`.
  __device__ float At(int64_t token, int64_t begin) const {
    float sum = bias_;
#pragma unroll
    for (int k = kTaps - 1; k >= 0; --k) {
      if (k < args_.taps && token - k >= begin) sum = fmaf(weight_[k], X(token - k), sum);
    }
    return sum;
  }

 private:
  const ConvArgs& args_;
  const int64_t group_, in_group_;
  float weight_[kTaps], bias_;
};

template <typename T, int kTaps>
__global__ void __launch_bounds__(kThreads) Forward(ConvArgs args) {
  const int64_t channel = static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x;
  if (channel >= args.channels) return;
  const Channel<T, kTaps> of(args, channel);
  const int64_t first = blockIdx.x * kTokensOfBlock;
  int64_t sequence = args.sequences.Of(first);
  for (int64_t t = first; t < min(first + kTokensOfBlock, args.tokens); ++t) {
    while (t >= args.sequences.begins[sequence + 1]) ++sequence;
    const float sum = of.At(t, args.sequences.begins[sequence]);
    static_cast<T*>(args.y)[t * args.channels + channel] =
        FromFloat<T>(Activate<Activation::kSilu, T>(sum));
  }
}

// Each thread goes back through a slice of the tokens, from as far behind it as the gradients of
// its last token come from.
template <typename T, int kTaps>
__global__ void __launch_bounds__(kThreads) Backward(ConvArgs args) {
  const int64_t channel = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (channel >= args.channels) return;
  const Channel<T, kTaps> of(args, channel);
  const int64_t per_slice = (args.tokens + gridDim.y - 1) / gridDim.y;
  const int64_t first = blockIdx.y * per_slice, last = min(first + per_slice, args.tokens);
  float dweight[kTaps] = {}, dbias = 0;
  // The gradients in front of the SiLU of the token and of those behind it in its sequence.
  float recent[kTaps] = {};
  const int64_t from = min(last + args.taps - 1, args.tokens) - 1;
  int64_t sequence = first < last ? args.sequences.Of(from) : 0;
  for (int64_t t = first < last ? from : first - 1; t >= first; --t) {
    while (t < args.sequences.begins[sequence]) --sequence;
    const int64_t begin = args.sequences.begins[sequence];
    const bool ends = t + 1 == args.sequences.begins[sequence + 1];
#pragma unroll
    for (int k = kTaps - 1; k > 0; --k) recent[k] = ends ? 0.0f : recent[k - 1];
    const float dy = ToFloat(static_cast<const T*>(args.y)[t * args.channels + channel]);
    recent[0] = dy * ActivationSlope<Activation::kSilu, T>(of.At(t, begin));
    if (t >= last) continue;
    dbias += recent[0];
    float dx = 0;
#pragma unroll
    for (int k = 0; k < kTaps; ++k) {
      if (k < args.taps) {
        dx = fmaf(of.Weight(k), recent[k], dx);
        if (t - k >= begin) dweight[k] = fmaf(recent[0], of.X(t - k), dweight[k]);
      }
    }
    of.StoreDx(t, dx);
  }
  const int64_t at = blockIdx.y * args.channels + channel;
#pragma unroll
  for (int k = 0; k < kTaps; ++k) {
    if (k < args.taps) args.weight_sums[at * args.taps + args.taps - 1 - k] = dweight[k];
  }
  args.bias_sums[at] = dbias;
}

ConvArgs ArgsOf(const Tensor& cu_seqlens, const CausalConvInputs& in, const Tensor& y_TGK) {
  ConvArgs args;
  args.sequences = SequencesOf(cu_seqlens);
  args.tokens = in.x_TGK.dim(0);
  args.group_channels = in.x_TGK.dim(2);
  args.channels = in.x_TGK.dim(1) * in.x_TGK.dim(2);
  args.taps = static_cast<int>(in.weight_GKW.dim(2));
  args.x = RowsOf(in.x_TGK);
  args.weight = in.weight_GKW.raw();
  args.bias = in.bias_GK.raw();
  args.y = y_TGK.raw();
  return args;
}

// Calls body with null pointers of the device's type, and with a constant that the taps do not
// exceed.
template <typename Body>
void WithTypeAndTaps(const CausalConvInputs& in, Body body) {
  WithType(in.x_TGK.dtype(), [&](auto* type) {
    if (in.weight_GKW.dim(2) <= 4) return body(type, std::integral_constant<int, 4>());
    body(type, std::integral_constant<int, kMostConvTaps>());
  });
}

}  // namespace

void CausalConvForward(const Stream& stream, const Tensor& cu_seqlens, const CausalConvInputs& in,
                       const Tensor& y_TGK) {
  if (in.x_TGK.numel() == 0) return;
  const ConvArgs args = ArgsOf(cu_seqlens, in, y_TGK);
  const dim3 grid(Blocks(args.tokens, kTokensOfBlock), Blocks(args.channels, kThreads));
  WithTypeAndTaps(in, [&](auto* type, auto taps) {
    using T = std::remove_pointer_t<decltype(type)>;
    constexpr int kTaps = decltype(taps)::value;
    Forward<T, kTaps><<<grid, kThreads, 0, Handle(stream)>>>(args);
  });
  CheckLaunched("causal convolution");
}

void CausalConvBackward(const Stream& stream, const Tensor& cu_seqlens, const CausalConvInputs& in,
                        const Tensor& dy_TGK, const CausalConvInputs& gradients) {
  if (in.x_TGK.numel() == 0) return;
  ConvArgs args = ArgsOf(cu_seqlens, in, dy_TGK);
  args.dx = RowsOf(gradients.x_TGK);
  const int64_t slices = SlicesOf(args.tokens);
  const dim3 grid(Blocks(args.channels, kThreads), static_cast<unsigned>(slices));
  args.weight_sums = static_cast<float*>(stream.cuda()->Workspace(
      slices * args.channels * (args.taps + 1) * static_cast<int64_t>(sizeof(float))));
  args.bias_sums = args.weight_sums + slices * args.channels * args.taps;
  WithTypeAndTaps(in, [&](auto* type, auto taps) {
    using T = std::remove_pointer_t<decltype(type)>;
    constexpr int kTaps = decltype(taps)::value;
    Backward<T, kTaps><<<grid, kThreads, 0, Handle(stream)>>>(args);
  });
  CheckLaunched("causal convolution's gradients");
  AddSlices(args.weight_sums, slices, args.channels * args.taps,
            {static_cast<float*>(gradients.weight_GKW.raw())}, Handle(stream));
  if (!in.bias_GK.empty()) {
    AddSlices(args.bias_sums, slices, args.channels, {static_cast<float*>(gradients.bias_GK.raw())},
              Handle(stream));
  }
}

MEGATRON_CUDA_KERNEL(CausalConvForward);
MEGATRON_CUDA_KERNEL(CausalConvBackward);

}  // namespace megatron::ops::cuda
