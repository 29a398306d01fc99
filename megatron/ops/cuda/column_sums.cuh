// The first step of sums of columns, for kernels that sum what they compute: each block sums a
// slice of the rows of some columns. AddSlices (column_sums.h) is the last step.
#ifndef MEGATRON_OPS_CUDA_COLUMN_SUMS_CUH_
#define MEGATRON_OPS_CUDA_COLUMN_SUMS_CUH_

#include <algorithm>
#include <cstdint>

#include "megatron/ops/cuda/device.cuh"

namespace megatron::ops::cuda {

// The largest number of slices of rows. It is a constant, not the number of multiprocessors: the
// order of the sum must not depend on the device.
constexpr int64_t kSlices = 128;

inline int64_t SlicesOf(int64_t rows) { return std::min(kSlices, (rows + kWarps - 1) / kWarps); }

// The grid of a kernel that calls SumSlice with vectors of n columns.
inline dim3 GridOfSlices(int64_t rows, int64_t columns, int n) {
  return dim3(Blocks(columns, kWarp * n), static_cast<unsigned>(SlicesOf(rows)));
}

// The sums of a block's warps.
template <int N>
using SumsOfWarps = float[kWarps][kWarp * N];

// Writes the block's row of `partial` [gridDim.y, columns]. values(row, i) returns columns [N i, N
// i + N) of a row; it is called once for each of them. Each warp takes a row of the tile, and each
// of its threads a vector. The sums of the warps are added up in order.
template <typename T, int N, typename Values>
__device__ void SumSlice(int64_t rows, int64_t columns, SumsOfWarps<N>& sums, float* partial,
                         Values values) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t tile = static_cast<int64_t>(blockIdx.x) * kWarp * N;
  const int64_t per_slice = (rows + gridDim.y - 1) / gridDim.y;
  const int64_t first = blockIdx.y * per_slice, last = min(first + per_slice, rows);
  float sum[N] = {};
  if (tile + lane * N < columns) {
#pragma unroll 4
    for (int64_t row = first + warp; row < last; row += kWarps) {
      const Vector<T, N> vector = values(row, tile / N + lane);
      for (int j = 0; j < N; ++j) sum[j] += ToFloat(vector.values[j]);
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

}  // namespace megatron::ops::cuda

#endif  // MEGATRON_OPS_CUDA_COLUMN_SUMS_CUH_
