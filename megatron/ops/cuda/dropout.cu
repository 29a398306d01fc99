#include "megatron/ops/cuda/column_sums.h"
#include "megatron/ops/cuda/device.cuh"
#include "megatron/ops/cuda/dropout.cuh"
#include "megatron/ops/cuda/kernels.h"

namespace megatron::ops::cuda {
namespace {

// A thread takes four columns of one token, which share their random words.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    BiasDropoutAddKernel(DropoutArgs dropout, int64_t tokens, int64_t columns, const T* x,
                         const T* bias, const T* residual, T* out) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t groups = dropout.groups(columns);
  if (i >= tokens * groups) return;
  const int64_t token = i / groups;
  ForEachColumn(dropout, columns, token, i % groups, [&](int64_t column, float scale) {
    const int64_t at = token * columns + column;
    float value = ToFloat(x[at]);
    if (bias != nullptr) value += ToFloat(bias[column]);
    value *= scale;
    if (residual != nullptr) value += ToFloat(residual[at]);
    out[at] = FromFloat<T>(value);
  });
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    DropoutBackwardKernel(DropoutArgs dropout, int64_t tokens, int64_t columns, const T* dy,
                          T* dx) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t groups = dropout.groups(columns);
  if (i >= tokens * groups) return;
  const int64_t token = i / groups;
  ForEachColumn(dropout, columns, token, i % groups, [&](int64_t column, float scale) {
    const int64_t at = token * columns + column;
    dx[at] = FromFloat<T>(ToFloat(dy[at]) * scale);
  });
}

// A thread takes four columns of one token, as above.
__global__ void __launch_bounds__(kThreads)
    JitterKernel(DropoutArgs random, float eps, int64_t tokens, int64_t columns, const float* x,
                 float* out) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t groups = random.groups(columns);
  if (i >= tokens * groups) return;
  const int64_t token = i / groups, first = i % groups * 4;
  const PhiloxBlock words = random.Words(token, i % groups);
  for (int64_t column = first; column < min(first + 4, columns); ++column) {
    const int64_t at = token * columns + column;
    out[at] = x[at] * (1 + eps * (2 * UniformOpenZero(words.word[column - first]) - 1));
  }
}

}  // namespace

void Jitter(const Stream& stream, float eps, const Dropout& random, const Tensor& x_TH,
            const Tensor& out_TH) {
  const int64_t tokens = x_TH.dim(0), columns = x_TH.dim(1);
  if (x_TH.numel() == 0) return;
  DropoutArgs args;
  args.key = random.key;
  args.sample_T = random.sample_T.data<int64_t>();
  args.position_T = random.position_T.data<int32_t>();
  JitterKernel<<<Blocks(tokens * args.groups(columns), kThreads), kThreads, 0, Handle(stream)>>>(
      args, eps, tokens, columns, x_TH.data<float>(), out_TH.data<float>());
  CheckLaunched("jitter");
}

void BiasDropoutAdd(const Stream& stream, const Dropout& dropout, const Tensor& x_TH,
                    const Tensor& bias_H, const Tensor& residual_TH, const Tensor& out_TH) {
  const int64_t tokens = x_TH.dim(0), columns = x_TH.dim(1);
  if (x_TH.numel() == 0) return;
  const DropoutArgs args = MakeDropoutArgs(dropout);
  WithType(x_TH.dtype(), [&](auto* type) {
    BiasDropoutAddKernel<<<Blocks(tokens * args.groups(columns), kThreads), kThreads, 0,
                           Handle(stream)>>>(args, tokens, columns, As(type, x_TH),
                                             As(type, bias_H), As(type, residual_TH),
                                             As(type, out_TH));
  });
  CheckLaunched("dropout");
}

void DropoutBackward(const Stream& stream, const Dropout& dropout, const Tensor& dy_TH,
                     const Tensor& dx_TH, const Tensor& dbias_H) {
  const int64_t tokens = dy_TH.dim(0), columns = dy_TH.dim(1);
  if (dy_TH.numel() == 0) return;
  const DropoutArgs args = MakeDropoutArgs(dropout);
  WithType(dy_TH.dtype(), [&](auto* type) {
    DropoutBackwardKernel<<<Blocks(tokens * args.groups(columns), kThreads), kThreads, 0,
                            Handle(stream)>>>(args, tokens, columns, As(type, dy_TH),
                                              As(type, dx_TH));
  });
  CheckLaunched("dropout backward");
  if (!dbias_H.empty()) AddColumnSums(stream, dx_TH, dbias_H);
}

}  // namespace megatron::ops::cuda
