// A block's tile of a matrix product: kTile x kTile elements by the four warps of a block. 16-bit
// types use tensor cores, with operands copied asynchronously in vectors if they are aligned, else
// element by element; fp32 uses fused multiply-adds.
#ifndef MEGATRON_OPS_CUDA_TILE_PRODUCT_CUH_
#define MEGATRON_OPS_CUDA_TILE_PRODUCT_CUH_

#include <cstdint>

#include "megatron/ops/cuda/device.cuh"
#include "megatron/ops/cuda/tensor_core.cuh"

namespace megatron::ops::cuda {

constexpr int kTile = 64;       // rows and columns of a block's result
constexpr int kTileDepth = 32;  // part of the summed dim that is in shared memory at once
constexpr int kTileThreads = 128;
constexpr int kTilePad = 8;  // padding of each line of shared memory, against bank conflicts

// A part of an operand in shared memory. Its contiguous lines run along the summed dim
// (kAlongDepth: element d of line i) or across it (element i of line d).
template <typename T, bool kAlongDepth>
struct SharedOperand {
  static constexpr int kLines = kAlongDepth ? kTile : kTileDepth;
  static constexpr int kWidth = kAlongDepth ? kTileDepth : kTile;
  alignas(16) T lines[kLines][kWidth + kTilePad];  // tensor cores load rows of 16 bytes

  __device__ T& At(int i, int d) { return kAlongDepth ? lines[i][d] : lines[d][i]; }
  __device__ const T& At(int i, int d) const { return kAlongDepth ? lines[i][d] : lines[d][i]; }
};

// Both operands of a step: a is [tile row, d], b is [d, tile column].
template <typename T, bool kAlongDepthA, bool kAlongDepthB>
struct SharedTile {
  SharedOperand<T, kAlongDepthA> a;
  SharedOperand<T, kAlongDepthB> b;
};

// The sum of products of tiles in shared memory.
template <typename T>
class TileSums {
 public:
  template <bool kAlongDepthA, bool kAlongDepthB>
  __device__ void Multiply(const SharedTile<T, kAlongDepthA, kAlongDepthB>& tile) {
    // Lanes 8 i to 8 i + 7 pass the rows of matrix i. The matrices of a are in the order (0, 0),
    // (8, 0), (0, 8), (8, 8) of (row, d); those of b in the same order of (d, column).
    const int lane = threadIdx.x % kWarp, line = lane % 8, low = lane / 8 % 2 * 8,
              high = lane / 16 * 8;
#pragma unroll
    for (int d = 0; d < kTileDepth; d += 16) {
      uint32_t left[2][4];
      for (int i = 0; i < 2; ++i) {
        if (kAlongDepthA) {
          LoadMatrices(&tile.a.At(Row() + 16 * i + low + line, d + high), left[i]);
        } else {
          LoadMatricesTransposed(&tile.a.At(Row() + 16 * i + low, d + high + line), left[i]);
        }
      }
#pragma unroll
      for (int j = 0; j < 4; j += 2) {
        uint32_t right[4];
        if (kAlongDepthB) {
          LoadMatrices(&tile.b.At(Column() + 8 * j + high + line, d + low), right);
        } else {
          LoadMatricesTransposed(&tile.b.At(Column() + 8 * j + high, d + low + line), right);
        }
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
  // Each of the four warps has a quarter of the tile.
  __device__ static int Row() { return threadIdx.x / kWarp / 2 * (kTile / 2); }
  __device__ static int Column() { return threadIdx.x / kWarp % 2 * (kTile / 2); }

  float sums_[2][4][4] = {};
};

template <>
class TileSums<float> {
 public:
  template <bool kAlongDepthA, bool kAlongDepthB>
  __device__ void Multiply(const SharedTile<float, kAlongDepthA, kAlongDepthB>& tile) {
    for (int d = 0; d < kTileDepth; ++d) {
      for (int i = 0; i < kRows; ++i) {
        for (int j = 0; j < kColumns; ++j)
          sums_[i][j] = fmaf(tile.a.At(Row() + i, d), tile.b.At(Column() + j, d), sums_[i][j]);
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
  // The threads form a grid of 16 x 8.
  static constexpr int kRows = kTile / 16, kColumns = kTile / 8;
  __device__ static int Row() { return threadIdx.x / 8 * kRows; }
  __device__ static int Column() { return threadIdx.x % 8 * kColumns; }

  float sums_[kRows][kColumns] = {};
};

// A matrix in memory: lines of `width` contiguous elements, `stride` apart. Elements beyond it are
// zero.
template <typename T>
struct Lines {
  const T* data;
  int64_t lines, width, stride;

  __device__ T At(int64_t line, int64_t i) const {
    return line < lines && i < width ? data[line * stride + i] : FromFloat<T>(0);
  }
};

// Fetches element by element; neighbouring threads read neighbouring elements.
template <typename T, bool kAlongDepth>
__device__ void Fetch(const Lines<T>& from, int64_t begin, int64_t depth,
                      SharedOperand<T, kAlongDepth>* to) {
  constexpr int kWidth = SharedOperand<T, kAlongDepth>::kWidth;
  const int64_t line = kAlongDepth ? begin : depth, first = kAlongDepth ? depth : begin;
  for (int i = threadIdx.x; i < kTile * kTileDepth; i += kTileThreads)
    to->lines[i / kWidth][i % kWidth] = from.At(line + i / kWidth, first + i % kWidth);
}

// Fetches asynchronously, in vectors of 16 bytes, each of which is inside or outside as a whole.
template <typename T, bool kAlongDepth>
__device__ void FetchAsync(const Lines<T>& from, int64_t begin, int64_t depth,
                           SharedOperand<T, kAlongDepth>* to) {
  constexpr int kVectors = SharedOperand<T, kAlongDepth>::kWidth / kVector<T>;
  const int64_t line = kAlongDepth ? begin : depth, first = kAlongDepth ? depth : begin;
  for (int i = threadIdx.x; i < kTile * kTileDepth / kVector<T>; i += kTileThreads) {
    const int to_line = i / kVectors, to_first = i % kVectors * kVector<T>;
    const int64_t at_line = line + to_line, at = first + to_first;
    const bool there = at_line < from.lines && at < from.width;
    CopyAsync(&to->lines[to_line][to_first],
              there ? from.data + at_line * from.stride + at : from.data, there);
  }
}

// Number of parts of the summed dim in shared memory or on their way: one is read while the others
// arrive.
template <bool kAsync>
constexpr int kStages = kAsync ? 3 : 1;

// sums += the tile at (row, column) of a b, over `depth` elements of the summed dim. All threads of
// the block call it. kAsync requires widths and strides that are multiples of a vector, and aligned
// data.
template <bool kAsync, typename T, bool kAlongDepthA, bool kAlongDepthB>
__device__ void MultiplyTile(const Lines<T>& a, const Lines<T>& b, int64_t row, int64_t column,
                             int64_t depth, SharedTile<T, kAlongDepthA, kAlongDepthB>* stages,
                             TileSums<T>* sums) {
  __syncthreads();  // the previous contents have been read
  if constexpr (kAsync) {
    constexpr int kAll = kStages<true>;
    const int64_t steps = (depth + kTileDepth - 1) / kTileDepth;
    const auto fetch = [&](int64_t step) {
      if (step < steps) {
        FetchAsync(a, row, step * kTileDepth, &stages[step % kAll].a);
        FetchAsync(b, column, step * kTileDepth, &stages[step % kAll].b);
      }
      CommitCopies();  // also of no copies, since steps are counted
    };
    for (int step = 0; step < kAll - 1; ++step) fetch(step);
    for (int64_t step = 0; step < steps; ++step) {
      WaitForCopies<kAll - 2>();  // waits for this step's copies
      __syncthreads();            // all copies are there; the previous step was read
      fetch(step + kAll - 1);
      sums->Multiply(stages[step % kAll]);
    }
  } else {
    for (int64_t d = 0; d < depth; d += kTileDepth) {
      Fetch(a, row, d, &stages->a);
      Fetch(b, column, d, &stages->b);
      __syncthreads();
      sums->Multiply(*stages);
      __syncthreads();
    }
  }
}

}  // namespace megatron::ops::cuda

#endif  // MEGATRON_OPS_CUDA_TILE_PRODUCT_CUH_
