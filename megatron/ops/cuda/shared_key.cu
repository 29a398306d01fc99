#include "megatron/ops/cuda/device.cuh"
#include "megatron/ops/cuda/kernel_table.h"
#include "megatron/ops/shared_key.h"

namespace megatron::ops::cuda {
namespace {

struct SharedKeyArgs {
  int64_t tokens, heads, own, shared;
  int64_t own_token_stride, own_head_stride, shared_stride, key_token_stride, key_head_stride;
};

SharedKeyArgs ArgsOf(const Tensor& own_TNO, const Tensor& shared_TS, const Tensor& key_TN) {
  return {key_TN.dim(0),       key_TN.dim(1),     own_TNO.dim(2),
          shared_TS.dim(1),    own_TNO.stride(0), own_TNO.stride(1),
          shared_TS.stride(0), key_TN.stride(0),  key_TN.stride(1)};
}

// Each thread has one element of one key.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    Join(SharedKeyArgs args, const T* own, const T* shared, T* key) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t width = args.own + args.shared, row = i / width, at = i % width;
  const int64_t token = row / args.heads, head = row % args.heads;
  if (token >= args.tokens) return;
  key[token * args.key_token_stride + head * args.key_head_stride + at] =
      at < args.own ? own[token * args.own_token_stride + head * args.own_head_stride + at]
                    : shared[token * args.shared_stride + at - args.own];
}

// Each thread has one element of the heads' own parts, or one sum over the heads.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    Split(SharedKeyArgs args, const T* dkey, T* down, T* dshared) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t of_token = args.heads * args.own + args.shared;
  const int64_t token = i / of_token, at = i % of_token;
  if (token >= args.tokens) return;
  const T* const keys = dkey + token * args.key_token_stride;
  if (at < args.heads * args.own) {
    const int64_t head = at / args.own, d = at % args.own;
    down[token * args.own_token_stride + head * args.own_head_stride + d] =
        keys[head * args.key_head_stride + d];
    return;
  }
  const int64_t d = at - args.heads * args.own;
  float sum = 0;
  for (int64_t head = 0; head < args.heads; ++head)
    sum += ToFloat(keys[head * args.key_head_stride + args.own + d]);
  dshared[token * args.shared_stride + d] = FromFloat<T>(sum);
}

}  // namespace

void JoinSharedKey(const Stream& stream, const Tensor& own_TNO, const Tensor& shared_TS,
                   const Tensor& key_TN) {
  const SharedKeyArgs args = ArgsOf(own_TNO, shared_TS, key_TN);
  if (key_TN.numel() == 0) return;
  WithType(key_TN.dtype(), [&](auto* type) {
    Join<<<Blocks(key_TN.numel(), kThreads), kThreads, 0, Handle(stream)>>>(
        args, As(type, own_TNO), As(type, shared_TS), As(type, key_TN));
  });
  CheckLaunched("shared keys");
}

void SplitSharedKey(const Stream& stream, const Tensor& dkey_TN, const Tensor& down_TNO,
                    const Tensor& dshared_TS) {
  const SharedKeyArgs args = ArgsOf(down_TNO, dshared_TS, dkey_TN);
  const int64_t count = args.tokens * (args.heads * args.own + args.shared);
  if (count == 0) return;
  WithType(dkey_TN.dtype(), [&](auto* type) {
    Split<<<Blocks(count, kThreads), kThreads, 0, Handle(stream)>>>(
        args, As(type, dkey_TN), As(type, down_TNO), As(type, dshared_TS));
  });
  CheckLaunched("gradients of shared keys");
}

MEGATRON_CUDA_KERNEL(JoinSharedKey);
MEGATRON_CUDA_KERNEL(SplitSharedKey);

}  // namespace megatron::ops::cuda
