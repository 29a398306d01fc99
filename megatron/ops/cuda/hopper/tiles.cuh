// Tiles of attention's operands in shared memory, in the layout of copies and products, and the
// assignment of tiles to blocks.
//
// A tile of rows of a head is one panel per 64 columns: kRows rows of 128 bytes, swizzled
// (instructions.cuh). Legend: kRows is a multiple of 64, kHead is 64 or 128.
#ifndef MEGATRON_OPS_CUDA_HOPPER_TILES_CUH_
#define MEGATRON_OPS_CUDA_HOPPER_TILES_CUH_

#include <cmath>
#include <cstdint>

#include "megatron/ops/cuda/attention.cuh"
#include "megatron/ops/cuda/hopper/instructions.cuh"
#include "megatron/ops/cuda/hopper/tensor_map.cuh"
#include "megatron/ops/cuda/tensor_core.cuh"

namespace megatron::ops::cuda::hopper {

constexpr int kGroupRows = 64;  // rows of a warpgroup's products
constexpr float kLog2E = 1.44269504f;

template <int kRows, int kHead>
struct Tile {
  static constexpr int kPanels = kHead / kBoxColumns;
  static constexpr int kPanelBytes = kRows * kSwizzledRow;
  static constexpr int kBytes = kPanels * kPanelBytes;

  char* memory;

  // Copies rows from `token` on, for a barrier that expects kBytes.
  __device__ void Copy(const TensorMap& map, int64_t head, int64_t group, int64_t token,
                       uint64_t* barrier) const {
    for (int panel = 0; panel < kPanels; ++panel) {
      CopyBox(map, panel * kBoxColumns, static_cast<int>(head), static_cast<int>(group),
              static_cast<int>(token), memory + panel * kPanelBytes, barrier);
    }
  }
  // The descriptor of columns [16 k, 16 k + 16) of rows from `row` on, for an operand summed over
  // columns.
  __device__ uint64_t SummedByColumn(int row, int k) const {
    const int at = k / 4 * kPanelBytes + row * kSwizzledRow + k % 4 * 32;
    return Descriptor(SharedAddress(memory) + at, 16, kAtomBytes);
  }
  // The descriptor of rows [16 k, 16 k + 16), for an operand summed over rows.
  __device__ uint64_t SummedByRow(int k) const {
    return Descriptor(SharedAddress(memory) + k * 2 * kAtomBytes, kPanelBytes, kAtomBytes);
  }
};

// sums (=): 64 rows of `left` from `row` on times the rows of `right`, as one group of products.
template <typename T, int kLeftRows, int kHead, int kTiles>
__device__ void MultiplyRows(const Tile<kLeftRows, kHead>& left, int row,
                             const Tile<8 * kTiles, kHead>& right, float (&sums)[kTiles][4]) {
  FenceProducts();
#pragma unroll
  for (int k = 0; k < kHead / 16; ++k) {
    Multiply<T, false>(left.SummedByColumn(row, k), right.SummedByColumn(0, k), sums, k > 0);
  }
  CommitProducts();
}

// sums += weights, whose columns are the tile's rows, times the tile, as one group of products.
template <typename T, int kSteps, int kHead>
__device__ void AddWeightedRows(const uint32_t (&weights)[kSteps][4],
                                const Tile<16 * kSteps, kHead>& tile, float (&sums)[kHead / 8][4]) {
  FenceProducts();
#pragma unroll
  for (int k = 0; k < kSteps; ++k) Multiply<T, true>(weights[k], tile.SummedByRow(k), sums, true);
  CommitProducts();
}

// Rounds sums into left operands.
template <typename T, int kTiles>
__device__ void Pack(const float (&sums)[kTiles][4], uint32_t (&packed)[kTiles / 2][4]) {
#pragma unroll
  for (int k = 0; k < kTiles / 2; ++k) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float(&tile)[4] = sums[2 * k + i / 2];
      packed[k][i] = PackPair<T>(tile[i % 2 * 2], tile[i % 2 * 2 + 1]);
    }
  }
}

template <int kTiles>
__device__ void SetZero(float (&sums)[kTiles][4]) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[n][i] = 0;
  }
}

// The column (8 n to 8 n + 7) of element i of the lane's sums.
__device__ inline int ColumnOf(int n, int i) {
  return 8 * n + static_cast<int>(threadIdx.x) % 4 * 2 + i % 2;
}

// The first of the two rows of this thread's sums; the other is 8 further.
__device__ inline int RowOf(int warpgroup) {
  const int in_group = static_cast<int>(threadIdx.x) % kWarpgroup;
  return warpgroup * kGroupRows + in_group / kWarp * 16 + in_group % kWarp / 4;
}

// Sets the scores of the lane's row r outside columns [begin, end) to minus infinity.
template <int kTiles>
__device__ void HideAllBut(int64_t begin, int64_t end, int r, float (&scores)[kTiles][4]) {
  const auto clamp = [](int64_t column) {
    return static_cast<int>(min(max(column, int64_t{0}), int64_t{8 * kTiles}));
  };
  const int first = clamp(begin), last = clamp(end);
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int i = 2 * r; i < 2 * r + 2; ++i) {
      const int column = ColumnOf(n, i);
      if (column < first || column >= last) scores[n][i] = -INFINITY;
    }
  }
}

// Word j of lane t of the quad becomes word t of lane j. All lanes of the warp must call it.
__device__ inline void TransposeInQuad(uint32_t (&words)[4]) {
#pragma unroll
  for (int distance = 1; distance <= 2; distance *= 2) {
    const bool upper = (threadIdx.x & static_cast<unsigned>(distance)) != 0;
#pragma unroll
    for (int low = 0; low < 4; ++low) {
      if ((low & distance) != 0) continue;
      const int high = low + distance;
      const uint32_t of_other =
          __shfl_xor_sync(0xffffffffu, upper ? words[low] : words[high], distance);
      words[low] = upper ? of_other : words[low];
      words[high] = upper ? words[high] : of_other;
    }
  }
}

// Row i of the lane = factor * sums, if it is there. A quad has 8 elements of each of four tiles of
// a row, in pairs; after an exchange each of its lanes has all 8 of one tile, which it stores at
// once. All lanes of the warp must call it. Rows are 16-byte aligned.
template <typename T, int kTiles>
__device__ void StoreRow(bool is_there, T* row, int i, const float (&sums)[kTiles][4],
                         float factor) {
  static_assert(sizeof(T) == 2 && kTiles % 4 == 0);
#pragma unroll
  for (int n = 0; n < kTiles; n += 4) {
    uint32_t words[4];
#pragma unroll
    for (int j = 0; j < 4; ++j)
      words[j] = PackPair<T>(sums[n + j][2 * i] * factor, sums[n + j][2 * i + 1] * factor);
    TransposeInQuad(words);
    if (is_there) {
      Store<uint32_t, 4>(reinterpret_cast<uint32_t*>(row), n + threadIdx.x % 4,
                         {{words[0], words[1], words[2], words[3]}});
    }
  }
}

// Barriers of a ring of kStages tiles in shared memory: one says that a tile is full, the other
// that all warps have read it.
template <int kStages>
struct Ring {
  uint64_t *full, *empty;

  // One thread fills tiles; `readers` warps read them.
  __device__ void Init(int fillers, int readers) const {
    for (int stage = 0; stage < kStages; ++stage) {
      InitBarrier(full + stage, fillers);
      InitBarrier(empty + stage, readers);
    }
  }
  // `i` is the number of a tile among all that pass.
  __device__ void WaitUntilEmpty(int i) const {
    WaitForPhase(empty + i % kStages, (i / kStages + 1) % 2);
  }
  __device__ void WaitUntilFull(int i) const { WaitForPhase(full + i % kStages, i / kStages % 2); }
  // Says that a warp has read the tile.
  __device__ void Release(int i) const {
    __syncwarp();
    if (threadIdx.x % kWarp == 0) Arrive(empty + i % kStages);
  }
};

// Rows [begin, end) of one side, all of one sequence, and the number of the sequence.
struct RowsOfBlock {
  int64_t begin = 0, end = 0, sequence = 0;
};

// Number of blocks for `tokens` in tiles of `rows` of one sequence each. Sequence s has the blocks
// from cu_seqlens[s] / rows + s on, which suffices for any lengths. Some blocks have no rows.
__host__ __device__ inline int64_t BlocksOfSequences(int64_t tokens, int64_t sequences, int rows) {
  return tokens / rows + sequences;
}
__device__ inline RowsOfBlock FindRows(const int32_t* cu_seqlens, int64_t sequences, int64_t block,
                                       int rows) {
  int64_t low = 0, high = sequences;
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    (cu_seqlens[middle] / rows + middle <= block ? low : high) = middle;
  }
  const int64_t first = cu_seqlens[low], last = cu_seqlens[low + 1];
  const int64_t begin = first + (block - first / rows - low) * rows;
  return {begin, min(begin + rows, last), low};
}

// The block's dynamic shared memory, from the first address where atoms may begin; this takes up to
// kSlack more bytes.
constexpr int kSlack = kAtomBytes - 16;
__device__ inline char* AlignToAtoms(char* memory) {
  const uint32_t address = SharedAddress(memory);
  return memory + ((address + kAtomBytes - 1) / kAtomBytes * kAtomBytes - address);
}

}  // namespace megatron::ops::cuda::hopper

#endif  // MEGATRON_OPS_CUDA_HOPPER_TILES_CUH_
