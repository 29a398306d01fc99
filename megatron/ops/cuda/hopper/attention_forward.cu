// Attention's forward pass on Hopper. All but one of a block's warpgroups have 64 queries each. A
// thread of the remaining one copies tiles of keys and values to a ring in shared memory, ahead of
// the others.
//
// A block takes one tile of queries after another. While the warpgroups that compute finish one,
// the queries of the next and its first keys are on their way.
//
// The scores of a tile are multiplied while the values of the previous tile are, and the softmax of
// the one overlaps the product of the other. Scores never leave registers: rounded, they are the
// left operand of the next product.
//
// The method is that of J. Shah et al., "FlashAttention-3", arXiv 2407.08608.
#include <algorithm>
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

// A tile of queries of one head, and the keys of its sequence, as one thread tells it to the
// others.
struct Work {
  static constexpr int kNoMore = -1;
  static constexpr int kSeesAll = 1 << 30;  // beyond any query

  int head;
  int first, end;  // queries
  // The keys without those in front of the first tile that a query of the work sees, of which there
  // are `skipped`.
  int first_key, keys, skipped;
  int diagonal;  // a query sees so many keys more than its number
  int window;    // AttentionArgs::window_size

  // The end of the keys that a query sees.
  __device__ int KeysSeenBy(int query) const { return min(max(query + diagonal, 0), keys); }
  __device__ int FirstSeenBy(int query) const {
    return window > 0 ? max(query + diagonal - 1 - window, 0) : 0;
  }
};

// Shared memory of a block, and the barriers that guard it.
template <typename Of>
struct Buffers {
  __device__ Buffers(char* memory, uint64_t* barriers, Work* work)
      : queries{memory},
        memory_of_keys(memory + Of::Queries::kBytes),
        work_of(work),
        works{barriers, barriers + kWorks},
        of_queries{barriers + 2 * kWorks, barriers + 2 * kWorks + 1},
        keys{barriers + kOthers, barriers + kOthers + Of::kStages},
        values{barriers + kOthers + 2 * Of::kStages, barriers + kOthers + 3 * Of::kStages} {}
  static constexpr int kWorks = 2;
  static constexpr int kOthers = 2 * kWorks + 2;  // barriers of works and queries
  static constexpr int kBarriers = kOthers + 4 * Of::kStages;

  __device__ Work& At(int work) const { return work_of[work % kWorks]; }
  __device__ typename Of::Keys Keys(int tile) const {
    return {memory_of_keys + tile % Of::kStages * Of::Keys::kBytes};
  }
  __device__ typename Of::Keys Values(int tile) const {
    return {memory_of_keys + (Of::kStages + tile % Of::kStages) * Of::Keys::kBytes};
  }
  // One thread.
  __device__ void Init() const {
    works.Init(1, Of::kConsumerWarps);
    of_queries.Init(1, Of::kConsumerWarps);
    keys.Init(1, Of::kConsumerWarps);
    values.Init(1, Of::kConsumerWarps);
    FenceAsyncProxy();
  }

  typename Of::Queries queries;
  char* memory_of_keys;
  Work* work_of;  // [kWorks]
  Ring<kWorks> works;
  Ring<1> of_queries;
  Ring<Of::kStages> keys, values;
};

struct Maps {
  TensorMap q, k, v;
};

// Tiles of queries of all heads, in the order in which blocks take them: within a sequence those
// with the most keys first. `taken` counts those beyond the first of each block. Which block takes
// one does not change its result.
struct Works {
  int blocks, count;
  int* taken;
  float scale;  // the factor of scores, times log2(e)
};

template <typename Of>
__device__ Work FindWork(const AttentionArgs& args, const Works& works, int number) {
  if (number >= works.count) return {Work::kNoMore, 0, 0, 0, 0, 0, 0, 0};
  const int64_t block = works.blocks - 1 - number % works.blocks;
  const RowsOfBlock rows = FindRows(args.cu_seqlens_q, args.sequences, block, Of::kQueries);
  const KeysOfSequence keys(args, rows.sequence);
  const int unseen = static_cast<int>(min(keys.FirstSeenBy(rows.begin), keys.end) - keys.first);
  const int skipped = unseen / Of::kKeys * Of::kKeys;
  const int first_key = static_cast<int>(keys.first) + skipped,
            count = static_cast<int>(keys.end) - first_key;
  return {number / works.blocks,
          static_cast<int>(rows.begin),
          static_cast<int>(rows.end),
          first_key,
          count,
          skipped,
          args.causal ? static_cast<int>(keys.shift) + 1 - first_key : Work::kSeesAll,
          static_cast<int>(min(args.window_size, int64_t{Work::kSeesAll}))};
}

// Number of tiles of the keys that a query sees, and those before it.
template <typename Of>
__device__ int TilesSeenBy(const Work& work, int query) {
  return (work.KeysSeenBy(query) + Of::kKeys - 1) / Of::kKeys;
}

// Loads the tiles of work `i` in the order in which they are waited for; `before` tiles of keys
// came before them. One thread runs this.
template <typename Of>
__device__ void ProduceWork(const Maps& maps, const AttentionArgs& args, const Buffers<Of>& buffers,
                            const Work& work, int i, int before) {
  const Head head = {work.head / args.group_heads, work.head % args.group_heads};
  const auto copy = [&](const Ring<Of::kStages>& ring, const typename Of::Keys& to,
                        const TensorMap& map, int tile) {
    uint64_t* const full = ring.full + (before + tile) % Of::kStages;
    ring.WaitUntilEmpty(before + tile);
    ArriveExpecting(full, Of::Keys::kBytes);
    to.Copy(map, 0, head.group, work.first_key + int64_t{tile} * Of::kKeys, full);
  };
  const auto copy_keys = [&](int tile) {
    copy(buffers.keys, buffers.Keys(before + tile), maps.k, tile);
  };
  const auto copy_values = [&](int tile) {
    copy(buffers.values, buffers.Values(before + tile), maps.v, tile);
  };
  const int tiles = TilesSeenBy<Of>(work, work.end - 1);
  if (tiles > 0) copy_keys(0);
  buffers.of_queries.WaitUntilEmpty(i);
  ArriveExpecting(buffers.of_queries.full, Of::Queries::kBytes);
  buffers.queries.Copy(maps.q, head.head, head.group, work.first, buffers.of_queries.full);
  for (int tile = 1; tile < tiles; ++tile) {
    copy_keys(tile);
    copy_values(tile - 1);
  }
  if (tiles > 0) copy_values(tiles - 1);
}

// Takes works until there are no more, tells them to the others, and loads their tiles. One thread
// runs this.
template <typename Of>
__device__ void Produce(const Maps& maps, const AttentionArgs& args, const Works& works,
                        const Buffers<Of>& buffers) {
  int number = static_cast<int>(blockIdx.x), i = 0, before = 0;
  for (;;) {
    const Work work = FindWork<Of>(args, works, number);
    const bool more = work.head != Work::kNoMore;
    if (!more || work.first < work.end) {
      buffers.works.WaitUntilEmpty(i);
      buffers.At(i) = work;
      Arrive(buffers.works.full + i % Buffers<Of>::kWorks);
      if (!more) return;
      ProduceWork(maps, args, buffers, work, i, before);
      before += TilesSeenBy<Of>(work, work.end - 1);
      ++i;
    }
    number = static_cast<int>(gridDim.x) + FetchAndIncrement(works.taken);
  }
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
  __device__ TileDropout(const AttentionArgs& args, const Work& work, int row) {
    if constexpr (Of::kDropout) {
      key_ = DropoutKey(args, work.head);
      drawn_ = DrawnQuery(args, min(row + 8 * static_cast<int>(threadIdx.x % 2), work.end - 1));
    }
  }
  __device__ void Draw(const AttentionArgs& args, const Work& work, int tile) {
    if constexpr (Of::kDropout)
      kept_ = KeysKeptBy<kTiles>(args, key_, drawn_, work.skipped + int64_t{tile} * Of::kKeys);
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

// Number of tiles of keys that the warpgroup's rows of a work see.
template <typename Of>
__device__ int TilesOfGroup(const Work& work, int group) {
  const int first = work.first + group * kGroupRows;
  return first < work.end ? TilesSeenBy<Of>(work, min(first + kGroupRows, work.end) - 1) : 0;
}

template <typename T, typename Of>
__device__ void StoreRows(const AttentionArgs& args, const Work& work, int group,
                          const Softmax& softmax, const float (&out)[Of::kHead / 8][4]) {
  const Head head = {work.head / args.group_heads, work.head % args.group_heads};
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float sum = QuadSum(softmax.sum[r]);
    const int query = work.first + RowOf(group) + 8 * r;
    const bool is_there = query < work.end;
    const float factor = Of::kDropout ? args.dropout_scale : 1;
    StoreRow(is_there, args.out.Row<T>(query, head.group, head.head), r, out,
             sum > 0 ? factor / sum : 0.0f);
    if (is_there && threadIdx.x % 4 == 0) {
      args.Lse(query, head.group, head.head) =
          sum > 0 ? softmax.max[r] * args.scale + logf(sum) : -INFINITY;
    }
  }
}

// Computes the warpgroup's rows of work `i`, whose first tile of keys is number `at` among all.
// Returns the number behind its last.
template <typename T, typename Of>
__device__ int ConsumeWork(const AttentionArgs& args, float scale, const Buffers<Of>& buffers,
                           int i, int at) {
  constexpr int kHead = Of::kHead;
  // What can be read from shared memory again takes no registers during products.
  const Work& work = buffers.At(i);
  const int group = static_cast<int>(threadIdx.x) / kWarpgroup - 1;
  const int mine = TilesOfGroup<Of>(work, group);

  float out[kHead / 8][4], scores[Of::kKeys / 8][4];
  uint32_t weights[Of::kKeys / 16][4];
  Softmax softmax = {scale};
  TileDropout<Of> dropout(args, work, work.first + RowOf(group));
  SetZero(out);
  const auto hide_unseen = [&](int tile) {
    const int begin = tile * Of::kKeys, first = work.first + group * kGroupRows;
    if (begin + Of::kKeys <= work.KeysSeenBy(first) &&
        begin >= work.FirstSeenBy(first + kGroupRows - 1)) {
      return;
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int query = work.first + RowOf(group) + 8 * r;
      HideAllBut(work.FirstSeenBy(query) - begin, work.KeysSeenBy(query) - begin, r, scores);
    }
  };
  // A group waits also for queries that it does not read, so that it gives none back twice in a
  // phase.
  buffers.of_queries.WaitUntilFull(i);
  if (mine == 0) buffers.of_queries.Release(i);
  if (mine > 0) {
    float correction[2];
    buffers.keys.WaitUntilFull(at);
    MultiplyRows<T>(buffers.queries, group * kGroupRows, buffers.Keys(at), scores);
    dropout.Draw(args, work, 0);
    WaitForProducts<0>();
    Settle(scores);
    buffers.keys.Release(at);
    if (mine == 1) buffers.of_queries.Release(i);
    hide_unseen(0);
    softmax.Add(scores, correction);
    dropout.Drop(scores);
    Pack<T>(scores, weights);
    ++at;
    for (int tile = 1; tile < mine; ++tile, ++at) {
      buffers.keys.WaitUntilFull(at);
      MultiplyRows<T>(buffers.queries, (ThreadAnew() / kWarpgroup - 1) * kGroupRows,
                      buffers.Keys(at), scores);
      buffers.values.WaitUntilFull(at - 1);
      AddWeightedRows<T>(weights, buffers.Values(at - 1), out);
      dropout.Draw(args, work, tile);
      WaitForProducts<1>();
      Settle(scores);
      buffers.keys.Release(at);
      if (tile == mine - 1) buffers.of_queries.Release(i);
      hide_unseen(tile);
      softmax.Add(scores, correction);
      dropout.Drop(scores);
      WaitForProducts<0>();
      Settle(out);
      buffers.values.Release(at - 1);
#pragma unroll
      for (int n = 0; n < kHead / 8; ++n) {
#pragma unroll
        for (int j = 0; j < 4; ++j) out[n][j] *= correction[j / 2];
      }
      Pack<T>(scores, weights);
    }
    buffers.values.WaitUntilFull(at - 1);
    AddWeightedRows<T>(weights, buffers.Values(at - 1), out);
    WaitForProducts<0>();
    Settle(out);
    buffers.values.Release(at - 1);
  }
  // The remaining tiles, which later rows of the block see and these rows do not.
  const int end = at + TilesSeenBy<Of>(work, work.end - 1) - TilesOfGroup<Of>(work, group);
  for (; at < end; ++at) {
    buffers.keys.WaitUntilFull(at);
    buffers.keys.Release(at);
    buffers.values.WaitUntilFull(at);
    buffers.values.Release(at);
  }
  StoreRows<T, Of>(args, work, group, softmax, out);
  return at;
}

template <typename T, typename Of>
__device__ void Consume(const AttentionArgs& args, float scale, const Buffers<Of>& buffers) {
  int at = 0;
  for (int i = 0;; ++i) {
    buffers.works.WaitUntilFull(i);
    if (buffers.At(i).head == Work::kNoMore) return;
    at = ConsumeWork<T>(args, scale, buffers, i, at);
    buffers.works.Release(i);
  }
}

// Grid: as many blocks as run at a time, or as there are works.
template <typename T, typename Of>
__global__ void __launch_bounds__(Of::kThreads, 1)
    Forward(const __grid_constant__ Maps maps, const __grid_constant__ AttentionArgs args,
            Works works) {
#ifdef MEGATRON_HAS_HOPPER_INSTRUCTIONS
  extern __shared__ __align__(16) char memory[];
  __shared__ uint64_t barriers[Buffers<Of>::kBarriers];
  __shared__ Work work[Buffers<Of>::kWorks];
  const Buffers<Of> buffers(AlignToAtoms(memory), barriers, work);
  if (threadIdx.x == 0) buffers.Init();
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    GiveRegisters<Of::kProducerRegisters>();
    if (threadIdx.x == 0) Produce(maps, args, works, buffers);
  } else {
    TakeRegisters<Of::kConsumerRegisters>();
    Consume<T>(args, works.scale, buffers);
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
         args.value_dim == args.head_dim && args.scale > 0 && args.queries > 0 && args.keys > 0 &&
         args.place_q == nullptr && (args.window_size == 0 || args.dropout_threshold == 0) &&
         args.bias == nullptr && args.softcap == 0 && hopper::TakesOperands(args);
}

void HopperAttentionForward(const Stream& stream, DType dtype, const AttentionArgs& args) {
  if (args.queries == 0 || args.groups * args.group_heads == 0) return;
  auto* const taken = static_cast<int*>(stream.cuda()->Workspace(sizeof(int)));
  CHECK_EQ(cudaMemsetAsync(taken, 0, sizeof(int), Handle(stream)), cudaSuccess);
  hopper::WithVariant(dtype, args, [&](auto* type, auto head, auto dropout) {
    using T = std::remove_pointer_t<decltype(type)>;
    using Shape = hopper::Shape<head.value, dropout.value>;
    const hopper::Maps maps = {hopper::MapOfQueries(dtype, args, args.q, Shape::kQueries),
                               hopper::MapOfKeys(dtype, args, args.k, Shape::kKeys),
                               hopper::MapOfKeys(dtype, args, args.v, Shape::kKeys)};
    constexpr auto kernel = hopper::Forward<T, Shape>;
    hopper::AllowShared<kernel, Shape::kSharedBytes>();
    const auto blocks = hopper::BlocksOfSequences(args.queries, args.sequences, Shape::kQueries);
    const int64_t count = blocks * args.groups * args.group_heads;
    CHECK_LT(count, int64_t{1} << 30) << "tiles of queries";
    const hopper::Works works = {static_cast<int>(blocks), static_cast<int>(count), taken,
                                 args.scale * hopper::kLog2E};
    const auto grid = static_cast<unsigned>(std::min<int64_t>(count, hopper::Multiprocessors()));
    kernel<<<grid, Shape::kThreads, Shape::kSharedBytes + hopper::kSlack, Handle(stream)>>>(
        maps, args, works);
    CheckLaunched("attention on Hopper");
  });
}

}  // namespace megatron::ops::cuda
