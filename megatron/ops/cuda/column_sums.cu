#include <algorithm>

#include "megatron/ops/cuda/column_sums.h"
#include "megatron/ops/cuda/device.cuh"

namespace megatron::ops::cuda {
namespace {

// The largest number of slices of rows. It is a constant, not the number of multiprocessors: the
// order of the sum must not depend on the device.
constexpr int64_t kSlices = 128;

// Each warp takes a row of the tile, and each of its threads a vector of N columns. The sums of the
// warps are added up in order.
template <typename T, int N>
__global__ void __launch_bounds__(kThreads)
    SumSlice(const T* x, int64_t rows, int64_t columns, int64_t stride, float* partial) {
  __shared__ float sums[kWarps][kWarp * N];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t tile = static_cast<int64_t>(blockIdx.x) * kWarp * N;
  const int64_t per_slice = (rows + gridDim.y - 1) / gridDim.y;
  const int64_t first = blockIdx.y * per_slice, last = min(first + per_slice, rows);
  float sum[N] = {};
  if (tile + lane * N < columns) {
#pragma unroll 4
    for (int64_t row = first + warp; row < last; row += kWarps) {
      const auto values = Load<T, N>(x + row * stride + tile, lane);
      for (int j = 0; j < N; ++j) sum[j] += ToFloat(values.values[j]);
    }
  }
  // Sums are stored by element of the vectors, so neighbouring threads write to neighbouring
  // places.
  for (int j = 0; j < N; ++j) sums[warp][j * kWarp + lane] = sum[j];
  __syncthreads();
  for (int c = threadIdx.x; c < kWarp * N && tile + c < columns; c += kThreads) {
    float total = 0;
    for (int w = 0; w < kWarps; ++w) total += sums[w][c % N * kWarp + c / N];
    partial[blockIdx.y * columns + tile + c] = total;
  }
}

// Each warp takes every kWarps-th slice of 32 columns; the first warp adds up the sums of the
// warps.
__global__ void __launch_bounds__(kThreads)
    AddSlicesKernel(const float* partial, int64_t slices, int64_t columns, float* sums) {
  __shared__ float of_warp[kWarps][kWarp];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kWarp + lane;
  float sum = 0;
  if (column < columns) {
#pragma unroll 8
    for (int64_t slice = warp; slice < slices; slice += kWarps)
      sum += partial[slice * columns + column];
  }
  of_warp[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || column >= columns) return;
  for (int w = 1; w < kWarps; ++w) sum += of_warp[w][lane];
  sums[column] += sum;
}

}  // namespace

void AddSlices(const float* partial, int64_t slices, int64_t columns, float* sums,
               CUstream_st* stream) {
  AddSlicesKernel<<<Blocks(columns, kWarp), kThreads, 0, stream>>>(partial, slices, columns, sums);
  CheckLaunched("sum of slices");
}

void AddColumnSums(const Stream& stream, const Tensor& x_TH, const Tensor& sums_H) {
  const int64_t rows = x_TH.dim(0), columns = x_TH.dim(1), stride = x_TH.stride(0);
  if (rows == 0 || columns == 0) return;
  const int64_t slices = std::min(kSlices, (rows + kWarps - 1) / kWarps);
  float* const partial = static_cast<float*>(
      stream.cuda()->Workspace(slices * columns * static_cast<int64_t>(sizeof(float))));
  const auto grid = [&](int n) {
    return dim3(Blocks(columns, kWarp * n), static_cast<unsigned>(slices));
  };
  WithType(x_TH.dtype(), [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    constexpr int N = kVector<T>;
    if (columns % N == 0 && stride % N == 0 && IsAligned({x_TH.raw()})) {
      SumSlice<T, N><<<grid(N), kThreads, 0, Handle(stream)>>>(As(type, x_TH), rows, columns,
                                                               stride, partial);
    } else {
      SumSlice<T, 1><<<grid(1), kThreads, 0, Handle(stream)>>>(As(type, x_TH), rows, columns,
                                                               stride, partial);
    }
  });
  CheckLaunched("column sums");
  AddSlices(partial, slices, columns, sums_H.data<float>(), Handle(stream));
}

}  // namespace megatron::ops::cuda
