// Attention's forward pass on Hopper. All but one of a block's warpgroups have 64 queries each. A
// thread of the remaining one copies tiles of keys and values to a ring in shared memory, ahead of
// the others.
//
// The scores of a tile are multiplied while the values of the previous tile are, and the softmax of
// the one overlaps the product of the other. Scores never leave registers: rounded, they are the
// left operand of the next product.
//
// The method is that of J. Shah et al., "FlashAttention-3", arXiv 2407.08608.
#include <cmath>

#include "megatron/ops/cuda/hopper/attention.h"
#include "megatron/ops/cuda/hopper/launch.cuh"
#include "megatron/ops/cuda/hopper/tiles.cuh"
#include "megatron/ops/cuda/own_attention.h"

namespace megatron::ops::cuda {
namespace hopper {
namespace {

template <int kHead>
struct Shape : WarpgroupShape<kHead == 64 ? 3 : 2> {
  static constexpr int kQueries = Shape::kRows, kKeys = 128, kStages = 2;
  using Queries = Tile<kQueries, kHead>;
  using Keys = Tile<kKeys, kHead>;
  static constexpr int kSharedBytes = Queries::kBytes + 2 * kStages * Keys::kBytes;
};

// Shared memory of a block, and the barriers that guard it.
template <int kHead>
struct Buffers {
  using Of = Shape<kHead>;

  __device__ Buffers(char* memory, uint64_t* barriers)
      : queries{memory},
        memory_of_keys(memory + Of::Queries::kBytes),
        queries_full(barriers),
        keys{barriers + 1, barriers + 1 + Of::kStages},
        values{barriers + 1 + 2 * Of::kStages, barriers + 1 + 3 * Of::kStages} {}
  static constexpr int kBarriers = 1 + 4 * Of::kStages;

  __device__ typename Of::Keys Keys(int tile) const {
    return {memory_of_keys + tile % Of::kStages * Of::Keys::kBytes};
  }
  __device__ typename Of::Keys Values(int tile) const {
    return {memory_of_keys + (Of::kStages + tile % Of::kStages) * Of::Keys::kBytes};
  }
  // One thread.
  __device__ void Init() const {
    InitBarrier(queries_full, 1);
    keys.Init(1, Of::kConsumerWarps);
    values.Init(1, Of::kConsumerWarps);
    FenceAsyncProxy();
  }

  typename Of::Queries queries;
  char* memory_of_keys;
  uint64_t* queries_full;
  Ring<Of::kStages> keys, values;
};

struct Maps {
  TensorMap q, k, v;
};

// Number of tiles of the keys that rows up to `query` see.
template <int kHead>
__device__ int TilesSeenBy(const KeysOfSequence& keys, int64_t query) {
  constexpr int kKeys = Shape<kHead>::kKeys;
  return static_cast<int>((keys.EndSeenBy(query) - keys.first + kKeys - 1) / kKeys);
}

// Loads the tiles in the order in which they are waited for. One thread runs this.
template <int kHead>
__device__ void Produce(const Maps& maps, const Buffers<kHead>& buffers, const Head& head,
                        const RowsOfBlock& rows, const KeysOfSequence& keys) {
  using Of = Shape<kHead>;
  const auto copy_keys = [&](int tile) {
    buffers.keys.WaitUntilEmpty(tile);
    ArriveExpecting(buffers.keys.full + tile % Of::kStages, Of::Keys::kBytes);
    buffers.Keys(tile).Copy(maps.k, 0, head.group, keys.first + int64_t{tile} * Of::kKeys,
                            buffers.keys.full + tile % Of::kStages);
  };
  const auto copy_values = [&](int tile) {
    buffers.values.WaitUntilEmpty(tile);
    ArriveExpecting(buffers.values.full + tile % Of::kStages, Of::Keys::kBytes);
    buffers.Values(tile).Copy(maps.v, 0, head.group, keys.first + int64_t{tile} * Of::kKeys,
                              buffers.values.full + tile % Of::kStages);
  };
  const int tiles = TilesSeenBy<kHead>(keys, rows.end - 1);
  if (tiles == 0) return;
  ArriveExpecting(buffers.queries_full, Of::Queries::kBytes);
  buffers.queries.Copy(maps.q, head.head, head.group, rows.begin, buffers.queries_full);
  copy_keys(0);
  for (int tile = 1; tile < tiles; ++tile) {
    copy_keys(tile);
    copy_values(tile - 1);
  }
  copy_values(tiles - 1);
}

// The running softmax of the lane's two rows. Scores are not scaled yet.
struct Softmax {
  float scale;  // includes the factor log2(e)
  float max[2] = {-INFINITY, -INFINITY}, sum[2] = {};

  // Scores become unnormalized probabilities; `correction` is the factor for the previous sums.
  template <int kTiles>
  __device__ void Add(float (&scores)[kTiles][4], float (&correction)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float top = max[r];
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        top = fmaxf(top, fmaxf(scores[n][2 * r], scores[n][2 * r + 1]));
      }
      top = QuadMax(top);
      const float base = top == -INFINITY ? 0 : top * scale;  // the row has seen no key yet
      correction[r] = Exp2(max[r] * scale - base);
      max[r] = top;
      sum[r] *= correction[r];
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
#pragma unroll
        for (int i = 2 * r; i < 2 * r + 2; ++i) {
          scores[n][i] = Exp2(fmaf(scores[n][i], scale, -base));
          sum[r] += scores[n][i];
        }
      }
    }
  }
};

template <typename T, int kHead>
__device__ void Consume(const AttentionArgs& args, const Buffers<kHead>& buffers, const Head& head,
                        const RowsOfBlock& rows, const KeysOfSequence& keys) {
  using Of = Shape<kHead>;
  const int group = static_cast<int>(threadIdx.x) / kWarpgroup - 1;
  const int64_t first = rows.begin + group * kGroupRows;
  const int64_t last = min(first + kGroupRows, rows.end) - 1;
  const int tiles = TilesSeenBy<kHead>(keys, rows.end - 1);
  const int mine = first < rows.end ? TilesSeenBy<kHead>(keys, last) : 0;
  const int64_t row = rows.begin + RowOf(group);

  float out[kHead / 8][4], scores[Of::kKeys / 8][4];
  uint32_t weights[Of::kKeys / 16][4];
  Softmax softmax = {args.scale * kLog2E};
  SetZero(out);
  const auto hide_unseen = [&](int tile) {
    const int64_t begin = keys.first + int64_t{tile} * Of::kKeys;
    if (begin + Of::kKeys <= keys.EndSeenBy(first)) return;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      HideAllBut(0, keys.EndSeenBy(row + 8 * r) - begin, r, scores);
    }
  };
  if (mine > 0) {
    float correction[2];
    WaitForPhase(buffers.queries_full, 0);
    buffers.keys.WaitUntilFull(0);
    MultiplyRows<T>(buffers.queries, group * kGroupRows, buffers.Keys(0), scores);
    WaitForProducts<0>();
    Settle(scores);
    buffers.keys.Release(0);
    hide_unseen(0);
    softmax.Add(scores, correction);
    Pack<T>(scores, weights);
    for (int tile = 1; tile < mine; ++tile) {
      buffers.keys.WaitUntilFull(tile);
      MultiplyRows<T>(buffers.queries, group * kGroupRows, buffers.Keys(tile), scores);
      buffers.values.WaitUntilFull(tile - 1);
      AddWeightedRows<T>(weights, buffers.Values(tile - 1), out);
      WaitForProducts<1>();
      Settle(scores);
      buffers.keys.Release(tile);
      hide_unseen(tile);
      softmax.Add(scores, correction);
      WaitForProducts<0>();
      Settle(out);
      buffers.values.Release(tile - 1);
#pragma unroll
      for (int n = 0; n < kHead / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) out[n][i] *= correction[i / 2];
      }
      Pack<T>(scores, weights);
    }
    buffers.values.WaitUntilFull(mine - 1);
    AddWeightedRows<T>(weights, buffers.Values(mine - 1), out);
    WaitForProducts<0>();
    Settle(out);
    buffers.values.Release(mine - 1);
  }
  // The remaining tiles, which later rows of the block see and these rows do not.
  for (int tile = mine; tile < tiles; ++tile) {
    buffers.keys.WaitUntilFull(tile);
    buffers.keys.Release(tile);
    buffers.values.WaitUntilFull(tile);
    buffers.values.Release(tile);
  }
  for (int r = 0; r < 2; ++r) {
    const float sum = QuadSum(softmax.sum[r]);
    const int64_t query = row + 8 * r;
    if (query >= rows.end) continue;
    StoreRow(args.out.Row<T>(query, head.group, head.head), r, out, sum > 0 ? 1 / sum : 0.0f);
    if (threadIdx.x % 4 == 0) {
      args.Lse(query, head.group, head.head) =
          sum > 0 ? softmax.max[r] * args.scale + logf(sum) : -INFINITY;
    }
  }
}

// Grid: x counts tiles of queries, those with the most keys first; y counts groups * group_heads.
template <typename T, int kHead>
__global__ void __launch_bounds__(Shape<kHead>::kThreads, 1)
    Forward(const __grid_constant__ Maps maps, const __grid_constant__ AttentionArgs args) {
#ifdef MEGATRON_HAS_HOPPER_INSTRUCTIONS
  extern __shared__ __align__(16) char memory[];
  __shared__ uint64_t barriers[Buffers<kHead>::kBarriers];
  const int64_t block = int64_t{gridDim.x} - 1 - blockIdx.x;
  const RowsOfBlock rows =
      FindRows(args.cu_seqlens_q, args.sequences, block, Shape<kHead>::kQueries);
  if (rows.begin >= rows.end) return;
  const Head head = HeadOfBlock(args);
  const KeysOfSequence keys(args, rows.sequence);
  const Buffers<kHead> buffers(AlignToAtoms(memory), barriers);
  if (threadIdx.x == 0) buffers.Init();
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    GiveRegisters<Shape<kHead>::kProducerRegisters>();
    if (threadIdx.x == 0) Produce<kHead>(maps, buffers, head, rows, keys);
  } else {
    TakeRegisters<Shape<kHead>::kConsumerRegisters>();
    Consume<T, kHead>(args, buffers, head, rows, keys);
  }
#endif
}

}  // namespace
}  // namespace hopper

bool HopperAttentionIsAvailable() {
  return hopper::DeviceIsHopper() && hopper::HasCode(hopper::Forward<__nv_bfloat16, 64>);
}

bool HopperTakes(DType dtype, const AttentionArgs& args) {
  return dtype != DType::kFloat32 && (args.head_dim == 64 || args.head_dim == 128) &&
         args.scale > 0 && args.queries > 0 && args.keys > 0 && args.place_q == nullptr &&
         args.bias == nullptr && args.dropout_threshold == 0 && hopper::TakesOperands(args);
}

void HopperAttentionForward(const Stream& stream, DType dtype, const AttentionArgs& args) {
  if (args.queries == 0 || args.groups * args.group_heads == 0) return;
  hopper::WithTypeAndHead(dtype, args.head_dim, [&](auto* type, auto head) {
    using T = std::remove_pointer_t<decltype(type)>;
    using Shape = hopper::Shape<head.value>;
    const hopper::Maps maps = {hopper::MapOfQueries(dtype, args, args.q, Shape::kQueries),
                               hopper::MapOfKeys(dtype, args, args.k, Shape::kKeys),
                               hopper::MapOfKeys(dtype, args, args.v, Shape::kKeys)};
    const auto kernel = hopper::Forward<T, head.value>;
    hopper::AllowShared(kernel, Shape::kSharedBytes);
    const auto blocks = hopper::BlocksOfSequences(args.queries, args.sequences, Shape::kQueries);
    kernel<<<dim3(Blocks(blocks, 1), static_cast<unsigned>(args.groups * args.group_heads)),
             Shape::kThreads, Shape::kSharedBytes + hopper::kSlack, Handle(stream)>>>(maps, args);
    CheckLaunched("attention on Hopper");
  });
}

}  // namespace megatron::ops::cuda
