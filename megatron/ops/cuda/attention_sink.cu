// Sinks of attention (ops/attention.h), put into what a kernel computed without them. So every
// kernel takes them, and those of libraries too.
#include <cmath>

#include "megatron/ops/cuda/attention.cuh"
#include "megatron/ops/cuda/device.cuh"
#include "megatron/ops/cuda/own_attention.h"

namespace megatron::ops::cuda {
namespace {

constexpr int64_t kTokensOfPart = 256;

struct SinkArgs {
  Operand out, lse, dout;  // a row of lse is one float
  int64_t tokens = 0, group_heads = 0;
  int head_dim = 0;
};

template <typename T>
__device__ void ScaleRow(T* row, int head_dim, float factor) {
  for (int d = threadIdx.x % kWarp; d < head_dim; d += kWarp)
    row[d] = FromFloat<T>(ToFloat(row[d]) * factor);
}

// A warp has one query of one head. Grid: x counts tiles of kWarps queries, y counts heads.
template <typename T>
__global__ void __launch_bounds__(kThreads) AddSink(SinkArgs args, const T* sink_N) {
  const int64_t query = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (query >= args.tokens) return;
  const int64_t group = blockIdx.y / args.group_heads, head = blockIdx.y % args.group_heads;
  float* const lse = args.lse.Row<float>(query, group, head);
  const float before = *lse, sink = ToFloat(sink_N[blockIdx.y]);
  __syncwarp();
  const float after = fmaxf(before, sink) + log1pf(expf(-fabsf(before - sink)));
  const float factor = expf(before - after);
  if (args.out.is_fp32) {
    ScaleRow(args.out.Row<float>(query, group, head), args.head_dim, factor);
  } else {
    ScaleRow(args.out.Row<T>(query, group, head), args.head_dim, factor);
  }
  if (threadIdx.x % kWarp == 0) *lse = after;
}

// A block sums the gradient of one head's sink over a part of the queries. A sink's value is zero,
// and so is the gradient of its probability. Grid: x counts parts, y counts heads.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    SumSinkGradients(SinkArgs args, const T* sink_N, float* sums) {
  __shared__ float partial[kWarps];
  const int64_t group = blockIdx.y / args.group_heads, head = blockIdx.y % args.group_heads;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kTokensOfPart;
  const int64_t end = min(begin + kTokensOfPart, args.tokens);
  const float sink = ToFloat(sink_N[blockIdx.y]);
  float sum = 0;
  for (int64_t query = begin + threadIdx.x / kWarp; query < end; query += kWarps) {
    const T* const out = args.out.Row<const T>(query, group, head);
    const T* const dout = args.dout.Row<const T>(query, group, head);
    float delta = 0;
    for (int d = threadIdx.x % kWarp; d < args.head_dim; d += kWarp)
      delta = fmaf(ToFloat(out[d]), ToFloat(dout[d]), delta);
    sum -= expf(sink - *args.lse.Row<const float>(query, group, head)) * delta;
  }
  sum = BlockSum(sum, partial);
  if (threadIdx.x == 0) sums[static_cast<int64_t>(blockIdx.y) * gridDim.x + blockIdx.x] = sum;
}

// dsink += the sums of all parts, in their order. Each thread has one head.
__global__ void __launch_bounds__(kThreads)
    AddParts(const float* sums, int64_t heads, int64_t parts, float* dsink_N) {
  const int64_t head = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (head >= heads) return;
  float sum = 0;
  for (int64_t part = 0; part < parts; ++part) sum += sums[head * parts + part];
  dsink_N[head] += sum;
}

SinkArgs ArgsOf(const Tensor& out_TGRE, const Tensor& lse_TGR) {
  SinkArgs args;
  args.out = OperandOf(out_TGRE);
  args.lse = {lse_TGR.raw(), true, lse_TGR.stride(0), lse_TGR.stride(1), lse_TGR.stride(2)};
  args.tokens = out_TGRE.dim(0);
  args.group_heads = out_TGRE.dim(2);
  args.head_dim = static_cast<int>(out_TGRE.dim(3));
  return args;
}

}  // namespace

void AddSinks(const Stream& stream, const Tensor& sink_N, const Tensor& out_TGRE,
              const Tensor& lse_TGR) {
  const SinkArgs args = ArgsOf(out_TGRE, lse_TGR);
  const int64_t heads = sink_N.numel();
  if (args.tokens == 0 || heads == 0) return;
  WithType(sink_N.dtype(), [&](auto* type) {
    AddSink<<<dim3(Blocks(args.tokens, kWarps), static_cast<unsigned>(heads)), kThreads, 0,
              Handle(stream)>>>(args, As(type, sink_N));
  });
  CheckLaunched("attention's sinks");
}

void AddSinkGradients(const Stream& stream, const Tensor& sink_N, const Tensor& out_TGRE,
                      const Tensor& lse_TGR, const Tensor& dout_TGRE, const Tensor& dsink_N) {
  SinkArgs args = ArgsOf(out_TGRE, lse_TGR);
  args.dout = OperandOf(dout_TGRE);
  const int64_t heads = sink_N.numel();
  if (args.tokens == 0 || heads == 0) return;
  const unsigned parts = Blocks(args.tokens, kTokensOfPart);
  auto* const sums = static_cast<float*>(
      stream.cuda()->Workspace(heads * parts * static_cast<int64_t>(sizeof(float))));
  WithType(sink_N.dtype(), [&](auto* type) {
    SumSinkGradients<<<dim3(parts, static_cast<unsigned>(heads)), kThreads, 0, Handle(stream)>>>(
        args, As(type, sink_N), sums);
  });
  CheckLaunched("gradients of attention's sinks");
  AddParts<<<Blocks(heads, kThreads), kThreads, 0, Handle(stream)>>>(sums, heads, parts,
                                                                     dsink_N.data<float>());
  CheckLaunched("gradients of attention's sinks");
}

}  // namespace megatron::ops::cuda
