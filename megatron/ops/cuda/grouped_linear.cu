// Products of groups of rows with a weight each, in one launch: a block computes a tile of the
// result, of one group (forward, input gradient) or of one expert over its groups (weight
// gradient). 16-bit types multiply on tensor cores, fp32 by fused multiply-adds.
#include <vector>

#include "megatron/ops/cuda/device.cuh"
#include "megatron/ops/cuda/kernels.h"
#include "megatron/ops/cuda/tensor_core.cuh"

namespace megatron::ops::cuda {
namespace {

constexpr int kTile = 64;   // rows and columns of a block's result
constexpr int kDepth = 32;  // of the summed dim that is in shared memory at once
constexpr int kBlockThreads = 128;
constexpr int kPad = 8;  // elements behind each row of shared memory, against bank conflicts

// A matrix in memory: element (i, j) at data[i * row_stride + j * column_stride], with `rows` and
// `columns` of it there and zero beyond.
template <typename T>
struct Operand {
  const T* data;
  int64_t rows, columns, row_stride, column_stride;
  __device__ T At(int64_t i, int64_t j) const {
    return i < rows && j < columns ? data[i * row_stride + j * column_stride] : FromFloat<T>(0);
  }
};

// The sum of products of tiles in shared memory.
template <typename T>
class Accumulator {
 public:
  __device__ void Multiply(const T (*a)[kDepth + kPad], const T (*b)[kTile + kPad]) {
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int k = 0; k < kDepth; k += 16) {
      uint32_t left[2][4];
      for (int i = 0; i < 2; ++i)
        LoadMatrices(&a[Row() + 16 * i + lane % 16][k + lane / 16 * 8], left[i]);
#pragma unroll
      for (int j = 0; j < 4; j += 2) {
        uint32_t right[4];
        LoadMatricesTransposed(&b[k + lane % 16][Column() + 8 * j + lane / 16 * 8], right);
        for (int i = 0; i < 2; ++i) {
          MultiplyAdd<T>(left[i], right[0], right[1], sums_[i][j]);
          MultiplyAdd<T>(left[i], right[2], right[3], sums_[i][j + 1]);
        }
      }
    }
  }
  // Calls body(row, column, sum) for the thread's elements of the tile.
  template <typename Body>
  __device__ void ForEach(Body body) const {
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          body(Row() + 16 * i + lane / 4 + e / 2 * 8, Column() + 8 * j + lane % 4 * 2 + e % 2,
               sums_[i][j][e]);
        }
      }
    }
  }

 private:
  // Four warps, each a quarter of the tile.
  __device__ static int Row() { return threadIdx.x / kWarp / 2 * (kTile / 2); }
  __device__ static int Column() { return threadIdx.x / kWarp % 2 * (kTile / 2); }

  float sums_[2][4][4] = {};
};

template <>
class Accumulator<float> {
 public:
  __device__ void Multiply(const float (*a)[kDepth + kPad], const float (*b)[kTile + kPad]) {
    for (int k = 0; k < kDepth; ++k) {
      for (int i = 0; i < kRows; ++i) {
        for (int j = 0; j < kColumns; ++j)
          sums_[i][j] = fmaf(a[Row() + i][k], b[k][Column() + j], sums_[i][j]);
      }
    }
  }
  template <typename Body>
  __device__ void ForEach(Body body) const {
    for (int i = 0; i < kRows; ++i) {
      for (int j = 0; j < kColumns; ++j) body(Row() + i, Column() + j, sums_[i][j]);
    }
  }

 private:
  // 16 x 8 threads.
  static constexpr int kRows = kTile / 16, kColumns = kTile / 8;
  __device__ static int Row() { return threadIdx.x / 8 * kRows; }
  __device__ static int Column() { return threadIdx.x % 8 * kColumns; }

  float sums_[kRows][kColumns] = {};
};

// Tensor cores load rows of 16 bytes.
template <typename T>
struct Shared {
  alignas(16) T a[kTile][kDepth + kPad];
  alignas(16) T b[kDepth][kTile + kPad];
};

// accumulator += the tile at (row, column) of a b.
template <typename T>
__device__ void MultiplyTile(const Operand<T>& a, const Operand<T>& b, int64_t row, int64_t column,
                             Shared<T>* shared, Accumulator<T>* accumulator) {
  for (int64_t k = 0; k < a.columns; k += kDepth) {
    __syncthreads();  // what was here before has been read
    for (int i = threadIdx.x; i < kTile * kDepth; i += kBlockThreads) {
      // Neighbouring threads read along the dim that is contiguous in memory.
      const bool by_row = a.column_stride == 1;
      const int m = by_row ? i / kDepth : i % kTile, d = by_row ? i % kDepth : i / kTile;
      shared->a[m][d] = a.At(row + m, k + d);
    }
    for (int i = threadIdx.x; i < kTile * kDepth; i += kBlockThreads) {
      const bool by_row = b.column_stride == 1;
      const int n = by_row ? i % kTile : i / kDepth, d = by_row ? i / kTile : i % kDepth;
      shared->b[d][n] = b.At(k + d, column + n);
    }
    __syncthreads();
    accumulator->Multiply(shared->a, shared->b);
  }
}

// out(i, j) = or += the tile's elements that exist.
template <typename T, typename Out>
__device__ void StoreTile(const Accumulator<T>& accumulator, int64_t rows, int64_t columns,
                          int64_t stride, bool accumulate, Out* out) {
  accumulator.ForEach([&](int row, int column, float sum) {
    if (row >= rows || column >= columns) return;
    Out& element = out[row * stride + column];
    element = FromFloat<Out>(sum + (accumulate ? ToFloat(element) : 0.0f));
  });
}

// Rows [begin, end) of a group that one row of blocks computes.
struct TileRows {
  int64_t expert, begin, end;
};

// y = x w^T of each group, or with `transposed` x w: w is [expert][out, in] either way.
template <typename T>
__global__ void __launch_bounds__(kBlockThreads)
    MultiplyRows(const TileRows* tiles, const T* x, const T* w, int64_t outputs, int64_t inputs,
                 bool transposed, T* y) {
  __shared__ Shared<T> shared;
  const TileRows tile = tiles[blockIdx.x];
  const int64_t depth = transposed ? outputs : inputs, width = transposed ? inputs : outputs;
  const T* const weight = w + tile.expert * outputs * inputs;
  const int64_t column = static_cast<int64_t>(blockIdx.y) * kTile;
  const Operand<T> a = {x + tile.begin * depth, tile.end - tile.begin, depth, depth, 1};
  const Operand<T> b = {weight, depth, width, transposed ? inputs : 1, transposed ? 1 : inputs};
  Accumulator<T> accumulator;
  MultiplyTile(a, b, 0, column, &shared, &accumulator);
  StoreTile(accumulator, tile.end - tile.begin, width - column, width, /*accumulate=*/false,
            y + tile.begin * width + column);
}

// dw[expert] += dy^T x over the expert's groups.
template <typename T>
__global__ void __launch_bounds__(kBlockThreads)
    MultiplyColumns(const TileRows* groups, int64_t num_groups, const T* dy, const T* x,
                    int64_t outputs, int64_t inputs, float* dw) {
  __shared__ Shared<T> shared;
  const int64_t expert = blockIdx.z, row = static_cast<int64_t>(blockIdx.y) * kTile,
                column = static_cast<int64_t>(blockIdx.x) * kTile;
  Accumulator<T> accumulator;
  for (int64_t i = 0; i < num_groups; ++i) {
    const TileRows group = groups[i];
    if (group.expert != expert) continue;
    const int64_t rows = group.end - group.begin;
    const Operand<T> a = {dy + group.begin * outputs, outputs, rows, 1, outputs};
    const Operand<T> b = {x + group.begin * inputs, rows, inputs, inputs, 1};
    MultiplyTile(a, b, row, column, &shared, &accumulator);
  }
  StoreTile(accumulator, outputs - row, inputs - column, inputs, /*accumulate=*/true,
            dw + (expert * outputs + row) * inputs + column);
}

// A copy for the device, in the workspace. Host memory that is not pinned is read before this
// returns.
const TileRows* OnDevice(const Stream& stream, const std::vector<TileRows>& tiles) {
  const auto bytes = static_cast<int64_t>(tiles.size() * sizeof(TileRows));
  void* const device = stream.cuda()->Workspace(bytes);
  CHECK_EQ(cudaMemcpyAsync(device, tiles.data(), bytes, cudaMemcpyHostToDevice, Handle(stream)),
           cudaSuccess);
  return static_cast<const TileRows*>(device);
}

void RunRows(const Stream& stream, absl::Span<const RowGroup> groups, const Tensor& x,
             const Tensor& w_EOI, bool transposed, const Tensor& y) {
  std::vector<TileRows> tiles;
  for (const RowGroup& group : groups) {
    for (int64_t begin = group.begin; begin < group.end; begin += kTile)
      tiles.push_back({group.expert, begin, std::min(begin + kTile, group.end)});
  }
  if (tiles.empty() || y.numel() == 0) return;
  const TileRows* const device = OnDevice(stream, tiles);
  const dim3 grid(static_cast<unsigned>(tiles.size()), Blocks(y.dim(1), kTile));
  WithType(x.dtype(), [&](auto* type) {
    MultiplyRows<<<grid, kBlockThreads, 0, Handle(stream)>>>(
        device, As(type, x), As(type, w_EOI), w_EOI.dim(1), w_EOI.dim(2), transposed, As(type, y));
  });
  CheckLaunched("grouped linear");
}

}  // namespace

void GroupedLinearForward(const Stream& stream, absl::Span<const RowGroup> groups,
                          const Tensor& x_RI, const Tensor& w_EOI, const Tensor& y_RO) {
  RunRows(stream, groups, x_RI, w_EOI, /*transposed=*/false, y_RO);
}

void GroupedLinearBackwardInput(const Stream& stream, absl::Span<const RowGroup> groups,
                                const Tensor& dy_RO, const Tensor& w_EOI, const Tensor& dx_RI) {
  RunRows(stream, groups, dy_RO, w_EOI, /*transposed=*/true, dx_RI);
}

void GroupedLinearBackwardWeight(const Stream& stream, absl::Span<const RowGroup> groups,
                                 const Tensor& dy_RO, const Tensor& x_RI, const Tensor& dw_EOI) {
  if (dw_EOI.numel() == 0 || x_RI.dim(0) == 0) return;
  std::vector<TileRows> all;
  for (const RowGroup& group : groups) all.push_back({group.expert, group.begin, group.end});
  const TileRows* const device = OnDevice(stream, all);
  const dim3 grid(Blocks(dw_EOI.dim(2), kTile), Blocks(dw_EOI.dim(1), kTile),
                  static_cast<unsigned>(dw_EOI.dim(0)));
  WithType(dy_RO.dtype(), [&](auto* type) {
    MultiplyColumns<<<grid, kBlockThreads, 0, Handle(stream)>>>(
        device, static_cast<int64_t>(all.size()), As(type, dy_RO), As(type, x_RI), dw_EOI.dim(1),
        dw_EOI.dim(2), dw_EOI.data<float>());
  });
  CheckLaunched("grouped linear weight gradient");
}

}  // namespace megatron::ops::cuda
