#include "megatron/ops/cuda/cudnn/transpose.h"
#include "megatron/ops/cuda/device.cuh"

namespace megatron::ops::cuda {
namespace {

// Each thread writes one element. Neighbours read elements a row apart, which the cache serves: the
// log-sum-exp of a call is small beside its other tensors.
__global__ void __launch_bounds__(kThreads)
    TransposeKernel(const float* in, int64_t count, int64_t rows, int64_t columns, float* out) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  const int64_t row = i % rows, column = i / rows % columns, matrix = i / rows / columns;
  out[i] = in[(matrix * rows + row) * columns + column];
}

}  // namespace

void Transpose(const Stream& stream, const float* in, int64_t matrices, int64_t rows,
               int64_t columns, float* out) {
  const int64_t count = matrices * rows * columns;
  TransposeKernel<<<Blocks(count, kThreads), kThreads, 0, Handle(stream)>>>(in, count, rows,
                                                                            columns, out);
  CheckLaunched("transposes");
}

}  // namespace megatron::ops::cuda
