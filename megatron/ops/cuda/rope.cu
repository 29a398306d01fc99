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
    Rotate<<<Blocks(count, kThreads), kThreads, 0, Handle(stream)>>>(args, As(type, x));
  });
  CheckLaunched("rope");
}

MEGATRON_CUDA_KERNEL(Rope);

}  // namespace megatron::ops::cuda
