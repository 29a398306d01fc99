#include "megatron/ops/cuda/column_sums.h"
#include "megatron/ops/cuda/device.cuh"
#include "megatron/ops/cuda/dropout.cuh"
#include "megatron/ops/cuda/kernel_table.h"
#include "megatron/ops/cuda/layer_norm.h"
#include "megatron/ops/dropout.h"

namespace megatron::ops::cuda {
namespace {

// The warp's token.
__device__ int64_t Token() {
  return static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
}

// Each warp takes a token, and each of its threads vectors of N columns.
template <typename T, int N>
__global__ void __launch_bounds__(kThreads) BiasDropoutAddKernel(ResidualSum<T> sum, T* out) {
  const int64_t token = Token();
  if (token >= sum.tokens) return;
  for (int64_t i = threadIdx.x % kWarp; i < sum.columns / N; i += kWarp)
    Store<T, N>(out + token * sum.columns, i, sum.template At<N>(token, i));
}

template <typename T, int N>
__global__ void __launch_bounds__(kThreads)
    DropoutBackwardKernel(DropoutArgs dropout, int64_t tokens, int64_t columns, const T* dy,
                          T* dx) {
  const int64_t token = Token();
  if (token >= tokens) return;
  for (int64_t i = threadIdx.x % kWarp; i < columns / N; i += kWarp) {
    auto values = Load<T, N>(dy + token * columns, i);
    float multipliers[N];
    dropout.Multipliers(token, i * N, multipliers);
    for (int j = 0; j < N; ++j)
      values.values[j] = FromFloat<T>(ToFloat(values.values[j]) * multipliers[j]);
    Store<T, N>(dx + token * columns, i, values);
  }
}

// Each thread takes four columns of one token, which share a Philox block.
__global__ void __launch_bounds__(kThreads)
    JitterKernel(DropoutArgs random, float eps, int64_t tokens, int64_t columns, const float* x,
                 float* out) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t groups = (columns + 3) / 4;
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
  JitterKernel<<<Blocks(tokens * ((columns + 3) / 4), kThreads), kThreads, 0, Handle(stream)>>>(
      args, eps, tokens, columns, x_TH.data<float>(), out_TH.data<float>());
  CheckLaunched("jitter");
}

void BiasDropoutAdd(const Stream& stream, const Dropout& dropout, const Tensor& x_TH,
                    const Tensor& bias_H, const Tensor& residual_TH, const Tensor& out_TH) {
  if (x_TH.numel() == 0) return;
  const unsigned blocks = Blocks(x_TH.dim(0), kWarps);
  WithType(x_TH.dtype(), [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const auto sum = MakeResidualSum(type, dropout, x_TH, bias_H, residual_TH);
    if (sum.TakesVectors({out_TH.raw()})) {
      BiasDropoutAddKernel<T, kVector<T>>
          <<<blocks, kThreads, 0, Handle(stream)>>>(sum, As(type, out_TH));
    } else {
      BiasDropoutAddKernel<T, 1><<<blocks, kThreads, 0, Handle(stream)>>>(sum, As(type, out_TH));
    }
  });
  CheckLaunched("dropout");
}

void DropoutBackward(const Stream& stream, const Dropout& dropout, const Tensor& dy_TH,
                     const Tensor& dx_TH, const Tensor& dbias_H) {
  const int64_t tokens = dy_TH.dim(0), columns = dy_TH.dim(1);
  if (dy_TH.numel() == 0) return;
  // Without dropout, there is at most a copy to make.
  if (dropout.probability > 0 || dx_TH.raw() != dy_TH.raw()) {
    const DropoutArgs args = MakeDropoutArgs(dropout);
    const unsigned blocks = Blocks(tokens, kWarps);
    WithType(dy_TH.dtype(), [&](auto* type) {
      using T = std::remove_pointer_t<decltype(type)>;
      if (columns % kVector<T> == 0 && args.first_column % 4 == 0 &&
          IsAligned({dy_TH.raw(), dx_TH.raw()})) {
        DropoutBackwardKernel<T, kVector<T>><<<blocks, kThreads, 0, Handle(stream)>>>(
            args, tokens, columns, As(type, dy_TH), As(type, dx_TH));
      } else {
        DropoutBackwardKernel<T, 1><<<blocks, kThreads, 0, Handle(stream)>>>(
            args, tokens, columns, As(type, dy_TH), As(type, dx_TH));
      }
    });
    CheckLaunched("dropout backward");
  }
  if (dbias_H.empty() || AddColumnSumsAsLayerNorm(stream, dx_TH, dbias_H)) return;
  AddColumnSums(stream, dx_TH, dbias_H);
}

MEGATRON_CUDA_KERNEL(Jitter);
MEGATRON_CUDA_KERNEL(BiasDropoutAdd);
MEGATRON_CUDA_KERNEL(DropoutBackward);

}  // namespace megatron::ops::cuda
