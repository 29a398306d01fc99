#include "megatron/ops/cuda/hopper/launch.cuh"
#include "megatron/ops/cuda/hopper/tile_probes.h"
#include "megatron/ops/cuda/hopper/tiles.cuh"

namespace megatron::ops::cuda::hopper {
namespace {

enum class Probe { kCopy, kScores, kWeightedSums };

// The place of an element in a tile, by the definition of the swizzle and not by the kernels' own
// code: chunks of 8 elements of row r are XORed with r % 8.
template <typename T, int kHead>
__device__ const T& ElementOf(const Tile<kProbeRows, kHead>& tile, int row, int column) {
  const int panel = column / 64, chunk = column % 64 / 8 ^ row % 8;
  return reinterpret_cast<const T*>(
      tile.memory)[(panel * kProbeRows + row) * 64 + chunk * 8 + column % 8];
}

template <typename T, int kHead>
__device__ void StoreCopy(const Tile<kProbeRows, kHead>& tile, float* out) {
  const int row = static_cast<int>(threadIdx.x);
  for (int column = 0; column < kHead; ++column)
    out[row * kHead + column] = ToFloat(ElementOf<T>(tile, row, column));
}

template <int kTiles>
__device__ void StoreSums(const float (&sums)[kTiles][4], float* out) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      out[(RowOf(0) + i / 2 * 8) * 8 * kTiles + ColumnOf(n, i)] = sums[n][i];
  }
}

template <typename T, int kHead>
__device__ void StoreScores(const Tile<kProbeRows, kHead>& tile, float* out) {
  float sums[kProbeRows / 8][4];
  MultiplyRows<T>(tile, kProbeRows - kProbeResults, tile, sums);
  WaitForProducts<0>();
  Settle(sums);
  StoreSums(sums, out);
}

template <typename T, int kHead>
__device__ void StoreWeightedSums(const Tile<kProbeRows, kHead>& tile, float* out) {
  float weights[kProbeRows / 8][4], sums[kHead / 8][4];
#pragma unroll
  for (int n = 0; n < kProbeRows / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      weights[n][i] = static_cast<float>(ProbeWeight(RowOf(0) + i / 2 * 8, ColumnOf(n, i)));
    }
  }
#pragma unroll
  for (int n = 0; n < kHead / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[n][i] = kProbeStart;
  }
  uint32_t packed[kProbeRows / 16][4];
  Pack<T>(weights, packed);
  AddWeightedRows<T>(packed, tile, sums);
  WaitForProducts<0>();
  Settle(sums);
  StoreSums(sums, out);
}

template <typename T, int kHead, Probe kProbe>
__global__ void __launch_bounds__(kWarpgroup, 1)
    Run(const __grid_constant__ TensorMap map, int head, int token, float* out) {
#ifdef MEGATRON_HAS_HOPPER_INSTRUCTIONS
  extern __shared__ __align__(16) char memory[];
  __shared__ uint64_t full;
  const Tile<kProbeRows, kHead> tile = {AlignToAtoms(memory)};
  if (threadIdx.x == 0) {
    InitBarrier(&full, 1);
    FenceAsyncProxy();
    ArriveExpecting(&full, Tile<kProbeRows, kHead>::kBytes);
    tile.Copy(map, head, 0, token, &full);
  }
  __syncthreads();
  WaitForPhase(&full, 0);
  if constexpr (kProbe == Probe::kCopy) StoreCopy<T>(tile, out);
  if constexpr (kProbe == Probe::kScores) StoreScores<T>(tile, out);
  if constexpr (kProbe == Probe::kWeightedSums) StoreWeightedSums<T>(tile, out);
#endif
}

template <Probe kProbe>
void Launch(const Stream& stream, const ProbedTile& of, float* out) {
  WithTypeAndHead(of.dtype, static_cast<int>(of.head_dim), [&](auto* type, auto head_dim) {
    using T = std::remove_pointer_t<decltype(type)>;
    constexpr int kHead = head_dim.value, kBytes = Tile<kProbeRows, kHead>::kBytes;
    const Operand x = {of.data, false, of.heads * kHead, of.heads * kHead, kHead};
    const TensorMap map = MakeTensorMap({of.dtype, &x, kHead, of.heads, 1, of.tokens, kProbeRows});
    constexpr auto kernel = Run<T, kHead, kProbe>;
    AllowShared<kernel, kBytes>();
    kernel<<<dim3(1), kWarpgroup, kBytes + kSlack, Handle(stream)>>>(
        map, static_cast<int>(of.head), static_cast<int>(of.token), out);
    CheckLaunched("a probe of tiles");
  });
}

}  // namespace

void ProbeCopy(const Stream& stream, const ProbedTile& tile, float* out) {
  Launch<Probe::kCopy>(stream, tile, out);
}
void ProbeScores(const Stream& stream, const ProbedTile& tile, float* out) {
  Launch<Probe::kScores>(stream, tile, out);
}
void ProbeWeightedSums(const Stream& stream, const ProbedTile& tile, float* out) {
  Launch<Probe::kWeightedSums>(stream, tile, out);
}

}  // namespace megatron::ops::cuda::hopper
