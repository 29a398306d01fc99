#include <algorithm>

#include "megatron/ops/cuda/device.cuh"
#include "megatron/ops/cuda/kernel_table.h"
#include "megatron/ops/rope.h"

namespace megatron::ops::cuda {
namespace {

struct RopeArgs {
  const float *cos_SP, *sin_SP;
  const int32_t* position_T;
  int64_t tokens, outer_heads, inner_heads, pairs;
  int64_t token_stride, outer_stride, inner_stride;
  bool interleaved, inverse;
};

// Each thread has one pair of one head of one token.
template <typename T>
__global__ void __launch_bounds__(kThreads) Rotate(RopeArgs args, T* x) {
  int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t pair = i % args.pairs;
  i /= args.pairs;
  const int64_t inner = i % args.inner_heads;
  i /= args.inner_heads;
  const int64_t outer = i % args.outer_heads;
  const int64_t token = i / args.outer_heads;
  if (token >= args.tokens) return;
  const int64_t at = args.position_T[token] * args.pairs + pair;
  const float cos = args.cos_SP[at];
  const float sin = args.inverse ? -args.sin_SP[at] : args.sin_SP[at];
  T* const head =
      x + token * args.token_stride + outer * args.outer_stride + inner * args.inner_stride;
  T& first = args.interleaved ? head[2 * pair] : head[pair];
  T& second = args.interleaved ? head[2 * pair + 1] : head[pair + args.pairs];
  const float a = ToFloat(first), b = ToFloat(second);
  first = FromFloat<T>(a * cos - b * sin);
  second = FromFloat<T>(b * cos + a * sin);
}

// Reads whole vectors of four floats, or the half of one.
template <int N>
__device__ void LoadFloats(const float* from, float (&out)[N]) {
  constexpr int kPart = N < 4 ? N : 4;
  for (int i = 0; i < N / kPart; ++i) {
    const auto part = Load<float, kPart>(from, i);
    for (int j = 0; j < kPart; ++j) out[i * kPart + j] = part.values[j];
  }
}

// Each block has one token, and its threads the pairs of vectors of 16 bytes, one of each half of a
// head, or, interleaved, the vectors.
template <typename T, bool kInterleaved>
__global__ void __launch_bounds__(kThreads) RotateVectors(RopeArgs args, T* x) {
  constexpr int N = kVector<T>, kPairs = kInterleaved ? N / 2 : N;
  const int64_t token = blockIdx.x;
  const int64_t row = args.position_T[token] * args.pairs;
  const float sign = args.inverse ? -1.0f : 1.0f;
  const int vectors = static_cast<int>(args.pairs) / kPairs;
  const int inner_heads = static_cast<int>(args.inner_heads);
  const int count = static_cast<int>(args.outer_heads) * inner_heads * vectors;
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    const int vector = i % vectors, head = i / vectors;
    T* const at = x + token * args.token_stride + head / inner_heads * args.outer_stride +
                  head % inner_heads * args.inner_stride;
    float cos[kPairs], sin[kPairs];
    LoadFloats(args.cos_SP + row + vector * kPairs, cos);
    LoadFloats(args.sin_SP + row + vector * kPairs, sin);
    auto first = Load<T, N>(at, vector);
    auto second = kInterleaved ? first : Load<T, N>(at + args.pairs, vector);
    for (int p = 0; p < kPairs; ++p) {
      T& a = first.values[kInterleaved ? 2 * p : p];
      T& b = kInterleaved ? first.values[2 * p + 1] : second.values[p];
      const float from_a = ToFloat(a), from_b = ToFloat(b), s = sign * sin[p];
      a = FromFloat<T>(from_a * cos[p] - from_b * s);
      b = FromFloat<T>(from_b * cos[p] + from_a * s);
    }
    Store<T, N>(at, vector, first);
    if (!kInterleaved) Store<T, N>(at + args.pairs, vector, second);
  }
}

template <typename T>
bool TakesVectors(const RopeArgs& args, const T* x) {
  constexpr int N = kVector<T>;
  const int64_t strides = args.token_stride | args.outer_stride | args.inner_stride;
  const int64_t pairs = args.interleaved ? N / 2 : N;
  return args.pairs % pairs == 0 && strides % N == 0 && IsAligned({args.cos_SP, args.sin_SP, x});
}

}  // namespace

// A position has to be a row of the tables; unlike on the CPU, nothing checks it.
void Rope(const Stream& stream, const Tensor& cos_SP, const Tensor& sin_SP,
          const Tensor& position_T, bool interleaved, bool inverse, const Tensor& x) {
  RopeArgs args;
  args.cos_SP = cos_SP.data<float>();
  args.sin_SP = sin_SP.data<float>();
  args.position_T = position_T.data<int32_t>();
  args.tokens = x.dim(0);
  args.outer_heads = x.dim(1);
  args.inner_heads = x.rank() == 4 ? x.dim(2) : 1;
  args.pairs = cos_SP.dim(1);
  args.token_stride = x.stride(0);
  args.outer_stride = x.stride(1);
  args.inner_stride = x.rank() == 4 ? x.stride(2) : 0;
  args.interleaved = interleaved;
  args.inverse = inverse;
  const int64_t count = args.tokens * args.outer_heads * args.inner_heads * args.pairs;
  if (count == 0) return;
  WithType(x.dtype(), [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    if (TakesVectors<T>(args, As(type, x))) {
      const int64_t vectors =
          count / args.pairs * (args.pairs * (interleaved ? 2 : 1) / kVector<T>);
      const int64_t of_token = vectors / args.tokens;
      const int threads =
          static_cast<int>(std::min<int64_t>(kThreads, (of_token + kWarp - 1) / kWarp * kWarp));
      const auto kernel = interleaved ? RotateVectors<T, true> : RotateVectors<T, false>;
      kernel<<<Blocks(args.tokens, 1), threads, 0, Handle(stream)>>>(args, As(type, x));
      return;
    }
    Rotate<<<Blocks(count, kThreads), kThreads, 0, Handle(stream)>>>(args, As(type, x));
  });
  CheckLaunched("rope");
}

MEGATRON_CUDA_KERNEL(Rope);

}  // namespace megatron::ops::cuda
