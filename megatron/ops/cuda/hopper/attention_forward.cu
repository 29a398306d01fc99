// Attention's forward pass on Hopper. All but one of a block's warpgroups have 64 queries each. A
// thread of the remaining one copies tiles of keys and values to a ring in shared memory, ahead of
// the others.
//
// The scores of a tile are multiplied while the values of the previous tile are, and the softmax of
// the one overlaps the product of the other. Scores never leave registers: rounded, they are the
// left operand of the next product.
//
// The method is that of J. Shah et al., "FlashAttention-3", arXiv 2407.08608.
#include <atomic>
#include <cmath>
#include <cstdint>

#include "megatron/ops/cuda/hopper/attention.h"
#include "megatron/ops/cuda/hopper/dropout.cuh"
#include "megatron/ops/cuda/hopper/launch.cuh"
#include "megatron/ops/cuda/hopper/tiles.cuh"
#include "megatron/ops/cuda/own_attention.h"

namespace megatron::ops::cuda {
namespace hopper {
namespace {

// Draws take registers that three consuming warpgroups do not have.
template <int kHeadDim, bool kWithDropout>
struct Shape : WarpgroupShape<kHeadDim == 64 && !kWithDropout ? 3 : 2> {
  static constexpr int kHead = kHeadDim, kQueries = Shape::kRows, kKeys = 128, kStages = 2;
  static constexpr bool kDropout = kWithDropout;
  using Queries = Tile<kQueries, kHead>;
  using Keys = Tile<kKeys, kHead>;
  static constexpr int kSharedBytes = Queries::kBytes + 2 * kStages * Keys::kBytes;
};

// Shared memory of a block, and the barriers that guard it.
template <typename Of>
struct Buffers {
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
template <typename Of>
__device__ int TilesSeenBy(const KeysOfSequence& keys, int64_t query) {
  return static_cast<int>((keys.EndSeenBy(query) - keys.first + Of::kKeys - 1) / Of::kKeys);
}

// Loads the tiles in the order in which they are waited for. One thread runs this.
template <typename Of>
__device__ void Produce(const Maps& maps, const Buffers<Of>& buffers, const Head& head,
                        const RowsOfBlock& rows, const KeysOfSequence& keys) {
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
  const int tiles = TilesSeenBy<Of>(keys, rows.end - 1);
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

// The dropout of a warpgroup's tiles; without dropout it does nothing.
template <typename Of>
class TileDropout {
 public:
  // `row` is the lane's first query.
  __device__ TileDropout(const AttentionArgs& args, const RowsOfBlock& rows, int64_t row) {
    if constexpr (Of::kDropout) {
      key_ = DropoutKey(args, blockIdx.y);
      drawn_ = DrawnQuery(args, min(row + 8 * (threadIdx.x % 2), rows.end - 1));
    }
  }
  __device__ void Draw(const AttentionArgs& args, int tile) {
    if constexpr (Of::kDropout)
      kept_ = KeysKeptBy<kTiles>(args, key_, drawn_, int64_t{tile} * Of::kKeys);
  }
  // Those that are kept are not scaled.
  __device__ void Drop(float (&probabilities)[Of::kKeys / 8][4]) const {
    if constexpr (Of::kDropout) {
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) probabilities[n][i] = kept_.Has(n, i) ? probabilities[n][i] : 0;
      }
    }
  }

 private:
  static constexpr int kTiles = Of::kKeys / 8;

  PhiloxKey key_;
  DrawnQuery drawn_;
  Kept<kTiles> kept_ = {};
};

template <typename T, typename Of>
__device__ void Consume(const AttentionArgs& args, const Buffers<Of>& buffers, const Head& head,
                        const RowsOfBlock& rows, const KeysOfSequence& keys) {
  constexpr int kHead = Of::kHead;
  const int group = static_cast<int>(threadIdx.x) / kWarpgroup - 1;
  const int64_t first = rows.begin + group * kGroupRows;
  const int64_t last = min(first + kGroupRows, rows.end) - 1;
  const int tiles = TilesSeenBy<Of>(keys, rows.end - 1);
  const int mine = first < rows.end ? TilesSeenBy<Of>(keys, last) : 0;
  const int64_t row = rows.begin + RowOf(group);

  float out[kHead / 8][4], scores[Of::kKeys / 8][4];
  uint32_t weights[Of::kKeys / 16][4];
  Softmax softmax = {args.scale * kLog2E};
  TileDropout<Of> dropout(args, rows, row);
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
    dropout.Draw(args, 0);
    WaitForProducts<0>();
    Settle(scores);
    buffers.keys.Release(0);
    hide_unseen(0);
    softmax.Add(scores, correction);
    dropout.Drop(scores);
    Pack<T>(scores, weights);
    for (int tile = 1; tile < mine; ++tile) {
      buffers.keys.WaitUntilFull(tile);
      MultiplyRows<T>(buffers.queries, group * kGroupRows, buffers.Keys(tile), scores);
      buffers.values.WaitUntilFull(tile - 1);
      AddWeightedRows<T>(weights, buffers.Values(tile - 1), out);
      dropout.Draw(args, tile);
      WaitForProducts<1>();
      Settle(scores);
      buffers.keys.Release(tile);
      hide_unseen(tile);
      softmax.Add(scores, correction);
      dropout.Drop(scores);
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
    const float factor = Of::kDropout ? args.dropout_scale : 1;
    StoreRow(args.out.Row<T>(query, head.group, head.head), r, out, sum > 0 ? factor / sum : 0.0f);
    if (threadIdx.x % 4 == 0) {
      args.Lse(query, head.group, head.head) =
          sum > 0 ? softmax.max[r] * args.scale + logf(sum) : -INFINITY;
    }
  }
}

// Grid: x counts tiles of queries, those with the most keys first; y counts groups * group_heads.
template <typename T, typename Of>
__global__ void __launch_bounds__(Of::kThreads, 1)
    Forward(const __grid_constant__ Maps maps, const __grid_constant__ AttentionArgs args) {
#ifdef MEGATRON_HAS_HOPPER_INSTRUCTIONS
  extern __shared__ __align__(16) char memory[];
  __shared__ uint64_t barriers[Buffers<Of>::kBarriers];
  const int64_t block = int64_t{gridDim.x} - 1 - blockIdx.x;
  const RowsOfBlock rows = FindRows(args.cu_seqlens_q, args.sequences, block, Of::kQueries);
  if (rows.begin >= rows.end) return;
  const Head head = HeadOfBlock(args);
  const KeysOfSequence keys(args, rows.sequence);
  const Buffers<Of> buffers(AlignToAtoms(memory), barriers);
  if (threadIdx.x == 0) buffers.Init();
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    GiveRegisters<Of::kProducerRegisters>();
    if (threadIdx.x == 0) Produce(maps, buffers, head, rows, keys);
  } else {
    TakeRegisters<Of::kConsumerRegisters>();
    Consume<T>(args, buffers, head, rows, keys);
  }
#endif
}

}  // namespace
}  // namespace hopper

bool HopperAttentionIsAvailable() {
  static std::atomic<uint64_t> asked{0}, available{0};
  const uint64_t device = hopper::DeviceBit();
  if ((asked & device) == 0) {
    constexpr auto kernel = hopper::Forward<__nv_bfloat16, hopper::Shape<64, false>>;
    if (hopper::DeviceIsHopper() && hopper::HasCode(kernel)) available |= device;
    asked |= device;
  }
  return (available & device) != 0;
}

bool HopperTakes(DType dtype, const AttentionArgs& args) {
  return dtype != DType::kFloat32 && (args.head_dim == 64 || args.head_dim == 128) &&
         args.scale > 0 && args.queries > 0 && args.keys > 0 && args.place_q == nullptr &&
         args.bias == nullptr && hopper::TakesOperands(args);
}

void HopperAttentionForward(const Stream& stream, DType dtype, const AttentionArgs& args) {
  if (args.queries == 0 || args.groups * args.group_heads == 0) return;
  hopper::WithVariant(dtype, args, [&](auto* type, auto head, auto dropout) {
    using T = std::remove_pointer_t<decltype(type)>;
    using Shape = hopper::Shape<head.value, dropout.value>;
    const hopper::Maps maps = {hopper::MapOfQueries(dtype, args, args.q, Shape::kQueries),
                               hopper::MapOfKeys(dtype, args, args.k, Shape::kKeys),
                               hopper::MapOfKeys(dtype, args, args.v, Shape::kKeys)};
    constexpr auto kernel = hopper::Forward<T, Shape>;
    hopper::AllowShared<kernel, Shape::kSharedBytes>();
    const auto blocks = hopper::BlocksOfSequences(args.queries, args.sequences, Shape::kQueries);
    kernel<<<dim3(Blocks(blocks, 1), static_cast<unsigned>(args.groups * args.group_heads)),
             Shape::kThreads, Shape::kSharedBytes + hopper::kSlack, Handle(stream)>>>(maps, args);
    CheckLaunched("attention on Hopper");
  });
}

}  // namespace megatron::ops::cuda
