#include <algorithm>

#include "megatron/ops/cuda/column_sums.cuh"
#include "megatron/ops/cuda/column_sums.h"
#include "megatron/ops/cuda/device.cuh"

namespace megatron::ops::cuda {
namespace {

template <typename T, int N>
__global__ void __launch_bounds__(kThreads)
    SumRows(const T* x, int64_t rows, int64_t columns, int64_t stride, float* partial) {
  __shared__ SumsOfWarps<N> sums;
  SumSlice<T, N>(rows, columns, sums, partial,
                 [&](int64_t row, int64_t i) { return Load<T, N>(x + row * stride, i); });
}

template <typename T>
__global__ void __launch_bounds__(kThreads) AddRowKernel(const T* x, int64_t columns, float* sums) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (column < columns) sums[column] += ToFloat(x[column]);
}

constexpr int kMostSums = 3;
struct Sums {
  float* of[kMostSums] = {};
};

// Each warp takes every kWarps-th slice of 32 columns; the first warp adds up the sums of the
// warps.
__global__ void __launch_bounds__(kThreads)
    AddSlicesKernel(const float* partial, int64_t slices, int64_t columns, Sums outs) {
  float* const sums = outs.of[blockIdx.y];
  if (sums == nullptr) return;
  partial += blockIdx.y * slices * columns;
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

void AddSlices(const float* partial, int64_t slices, int64_t columns,
               std::initializer_list<float*> sums, CUstream_st* stream) {
  CHECK_LE(sums.size(), size_t{kMostSums});
  Sums outs;
  std::copy(sums.begin(), sums.end(), outs.of);
  const dim3 grid(Blocks(columns, kWarp), static_cast<unsigned>(sums.size()));
  AddSlicesKernel<<<grid, kThreads, 0, stream>>>(partial, slices, columns, outs);
  CheckLaunched("sum of slices");
}

void AddRow(const Stream& stream, const Tensor& x_H, const Tensor& sums_H) {
  const int64_t columns = x_H.numel();
  if (columns == 0) return;
  WithType(x_H.dtype(), [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    AddRowKernel<T><<<Blocks(columns, kThreads), kThreads, 0, Handle(stream)>>>(
        As(type, x_H), columns, sums_H.data<float>());
  });
  CheckLaunched("sum of rows");
}

void AddColumnSums(const Stream& stream, const Tensor& x_TH, const Tensor& sums_H) {
  const int64_t rows = x_TH.dim(0), columns = x_TH.dim(1), stride = x_TH.stride(0);
  if (rows == 0 || columns == 0) return;
  const int64_t slices = SlicesOf(rows);
  float* const partial = static_cast<float*>(
      stream.cuda()->Workspace(slices * columns * static_cast<int64_t>(sizeof(float))));
  WithType(x_TH.dtype(), [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    constexpr int N = kVector<T>;
    if (columns % N == 0 && stride % N == 0 && IsAligned({x_TH.raw()})) {
      SumRows<T, N><<<GridOfSlices(rows, columns, N), kThreads, 0, Handle(stream)>>>(
          As(type, x_TH), rows, columns, stride, partial);
    } else {
      SumRows<T, 1><<<GridOfSlices(rows, columns, 1), kThreads, 0, Handle(stream)>>>(
          As(type, x_TH), rows, columns, stride, partial);
    }
  });
  CheckLaunched("column sums");
  AddSlices(partial, slices, columns, {sums_H.data<float>()}, Handle(stream));
}

}  // namespace megatron::ops::cuda
