// Attention's backward pass on Hopper, in two kernels. One has tiles of queries and sums up their
// gradient over tiles of keys; the other has tiles of keys and sums up their gradients over tiles
// of queries. So no row is written by two blocks; the price is that scores are computed twice.
//
// As in the forward pass, one thread copies tiles ahead of the warpgroups that compute, and
// probabilities and their gradients stay in registers: the second kernel multiplies keys by
// queries, so that its rows are keys.
//
// The method is that of J. Shah et al., "FlashAttention-3", arXiv 2407.08608.
#include <cmath>

#include "megatron/ops/cuda/attention_delta.cuh"
#include "megatron/ops/cuda/hopper/attention.h"
#include "megatron/ops/cuda/hopper/dropout.cuh"
#include "megatron/ops/cuda/hopper/launch.cuh"
#include "megatron/ops/cuda/hopper/tiles.cuh"

namespace megatron::ops::cuda {
namespace hopper {
namespace {

// Two tiles of the block's own side stay in shared memory; pairs of tiles of the other side pass
// through a ring.
template <int kHeadDim, int kOtherRows>
struct Shape : WarpgroupShape<2> {
  static constexpr int kHead = kHeadDim, kOther = kOtherRows, kStages = 4;
  using Own = Tile<Shape::kRows, kHead>;
  using Passing = Tile<kOther, kHead>;
  static constexpr int kRowNumbers = 2 * kOther;  // floats of lse and delta per stage
  static constexpr int kSharedBytes = 2 * Own::kBytes + 2 * kStages * Passing::kBytes +
                                      kStages * kRowNumbers * static_cast<int>(sizeof(float));
};
template <int kHead>
using QueryShape = Shape<kHead, kHead == 64 ? 128 : 64>;
template <int kHead>
using KeyShape = Shape<kHead, 64>;

template <typename Of>
struct Buffers {
  __device__ Buffers(char* memory, uint64_t* barriers)
      : memory(memory), own_full(barriers), ring{barriers + 1, barriers + 1 + Of::kStages} {}
  static constexpr int kBarriers = 1 + 2 * Of::kStages;

  // x is 0 or 1.
  __device__ typename Of::Own Own(int x) const { return {memory + x * Of::Own::kBytes}; }
  __device__ typename Of::Passing Passing(int x, int tile) const {
    const int place = 2 * (tile % Of::kStages) + x;
    return {memory + 2 * Of::Own::kBytes + place * Of::Passing::kBytes};
  }
  __device__ float* RowNumbers(int x, int tile) const {
    char* const first = memory + 2 * Of::Own::kBytes + 2 * Of::kStages * Of::Passing::kBytes;
    return reinterpret_cast<float*>(first) + (2 * (tile % Of::kStages) + x) * Of::kOther;
  }
  // One thread.
  __device__ void Init(int fillers) const {
    InitBarrier(own_full, 1);
    ring.Init(fillers, Of::kConsumerWarps);
    FenceAsyncProxy();
  }

  char* memory;
  uint64_t* own_full;
  Ring<Of::kStages> ring;
};

// The tensors of the block's own tiles, and those of the tiles that pass through the ring.
struct Maps {
  TensorMap own[2], passing[2];
};

template <typename Of>
__device__ void CopyOwn(const Maps& maps, const Buffers<Of>& buffers, int64_t head, int64_t group,
                        int64_t token) {
  ArriveExpecting(buffers.own_full, 2 * Of::Own::kBytes);
  for (int x = 0; x < 2; ++x) {
    buffers.Own(x).Copy(maps.own[x], head, group, token, buffers.own_full);
  }
}

// Loads a passing tile; `tile` counts the passing tiles, `token` is its first token. One thread
// runs this.
template <typename Of>
__device__ void CopyPassing(const Maps& maps, const Buffers<Of>& buffers, int tile, int64_t head,
                            int64_t group, int64_t token) {
  uint64_t* const full = buffers.ring.full + tile % Of::kStages;
  ArriveExpecting(full, 2 * Of::Passing::kBytes);
  for (int x = 0; x < 2; ++x) {
    buffers.Passing(x, tile).Copy(maps.passing[x], head, group, token, full);
  }
}

template <typename Of>
__device__ int Tiles(int64_t rows) {
  return rows > 0 ? static_cast<int>((rows + Of::kOther - 1) / Of::kOther) : 0;
}

// Returns the first key of the first tile that a query of the block sees. Draws leave no registers
// for a window.
template <bool kDropout, typename Of>
__device__ int64_t FirstKeyOf(const RowsOfBlock& rows, const KeysOfSequence& keys) {
  if constexpr (kDropout) return keys.first;
  const int64_t unseen = min(keys.FirstSeenBy(rows.begin), keys.end) - keys.first;
  return keys.first + unseen / Of::kOther * Of::kOther;
}

template <typename T, bool kDropout, typename Of>
__device__ void ConsumeKeys(const AttentionArgs& args, const Buffers<Of>& buffers, const Head& head,
                            const RowsOfBlock& rows, const KeysOfSequence& keys) {
  const int group = static_cast<int>(threadIdx.x) / kWarpgroup - 1, in_own = group * kGroupRows;
  const int64_t first = rows.begin + in_own, row = rows.begin + RowOf(group);
  const int64_t last = min(first + kGroupRows, rows.end) - 1;
  const int64_t first_key = FirstKeyOf<kDropout, Of>(rows, keys);
  const int tiles = Tiles<Of>(keys.EndSeenBy(rows.end - 1) - first_key);
  const int mine = first < rows.end ? Tiles<Of>(keys.EndSeenBy(last) - first_key) : 0;
  float lse[2] = {}, delta[2] = {};
  for (int r = 0; r < 2; ++r) {
    const bool is_there = row + 8 * r < rows.end;
    delta[r] = ComputeDelta<T, Of::kHead>(args, row + 8 * r, head.group, head.head, is_there);
    if (is_there) lse[r] = FiniteLse(args, row + 8 * r, head);
  }

  const float scale = args.scale * kLog2E;
  float dq[Of::kHead / 8][4], p[Of::kOther / 8][4], ds[Of::kOther / 8][4];
  uint32_t packed[Of::kOther / 16][4];
  PhiloxKey key;
  DrawnQuery drawn;
  Kept<Of::kOther / 8> kept = {};
  if constexpr (kDropout) {
    key = DropoutKey(args, blockIdx.y);
    drawn = DrawnQuery(args, min(row + 8 * (threadIdx.x % 2), rows.end - 1));
  }
  SetZero(dq);
  if (mine > 0) WaitForPhase(buffers.own_full, 0);
  for (int tile = 0; tile < mine; ++tile) {
    buffers.ring.WaitUntilFull(tile);
    MultiplyRows<T>(buffers.Own(0), in_own, buffers.Passing(0, tile), p);
    MultiplyRows<T>(buffers.Own(1), in_own, buffers.Passing(1, tile), ds);
    const int64_t begin = first_key + int64_t{tile} * Of::kOther;
    if constexpr (kDropout) kept = KeysKeptBy<Of::kOther / 8>(args, key, drawn, begin - keys.first);
    WaitForProducts<1>();
    Settle(p);
    if (tile > 0) buffers.ring.Release(tile - 1);
    if (begin + Of::kOther > keys.EndSeenBy(first) ||
        (!kDropout && begin < keys.FirstSeenBy(last))) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int64_t query = row + 8 * r;
        HideAllBut(kDropout ? 0 : keys.FirstSeenBy(query) - begin, keys.EndSeenBy(query) - begin, r,
                   p);
      }
    }
#pragma unroll
    for (int n = 0; n < Of::kOther / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) p[n][i] = Exp2(fmaf(p[n][i], scale, -lse[i / 2]));
    }
    WaitForProducts<0>();
    Settle(ds);
#pragma unroll
    for (int n = 0; n < Of::kOther / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if constexpr (kDropout) ds[n][i] = kept.Has(n, i) ? ds[n][i] * args.dropout_scale : 0;
        ds[n][i] = p[n][i] * (ds[n][i] - delta[i / 2]);
      }
    }
    Pack<T>(ds, packed);
    AddWeightedRows<T>(packed, buffers.Passing(0, tile), dq);
  }
  WaitForProducts<0>();
  Settle(dq);
  if (mine > 0) buffers.ring.Release(mine - 1);
  for (int tile = mine; tile < tiles; ++tile) {
    buffers.ring.WaitUntilFull(tile);
    buffers.ring.Release(tile);
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    StoreRow(row + 8 * r < rows.end, args.dq.Row<T>(row + 8 * r, head.group, head.head), r, dq,
             args.scale);
  }
}

// The gradient of queries, and delta for the other kernel. Grid: x counts tiles of queries, those
// with the most keys first; y counts groups * group_heads.
template <typename T, typename Of, bool kDropout>
__global__ void __launch_bounds__(Of::kThreads, 1)
    BackwardQuery(const __grid_constant__ Maps maps, const __grid_constant__ AttentionArgs args) {
#ifdef MEGATRON_HAS_HOPPER_INSTRUCTIONS
  extern __shared__ __align__(16) char memory[];
  __shared__ uint64_t barriers[Buffers<Of>::kBarriers];
  const int64_t block = int64_t{gridDim.x} - 1 - blockIdx.x;
  const RowsOfBlock rows = FindRows(args.cu_seqlens_q, args.sequences, block, Of::kRows);
  if (rows.begin >= rows.end) return;
  const Head head = HeadOfBlock(args);
  const KeysOfSequence keys(args, rows.sequence);
  const Buffers<Of> buffers(AlignToAtoms(memory), barriers);
  if (threadIdx.x == 0) buffers.Init(1);
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    GiveRegisters<Of::kProducerRegisters>();
    const int64_t first_key = FirstKeyOf<kDropout, Of>(rows, keys);
    const int tiles = Tiles<Of>(keys.EndSeenBy(rows.end - 1) - first_key);
    if (threadIdx.x > 0 || tiles == 0) return;
    CopyOwn(maps, buffers, head.head, head.group, rows.begin);
    for (int tile = 0; tile < tiles; ++tile) {
      buffers.ring.WaitUntilEmpty(tile);
      CopyPassing(maps, buffers, tile, 0, head.group, first_key + int64_t{tile} * Of::kOther);
    }
  } else {
    TakeRegisters<Of::kConsumerRegisters>();
    ConsumeKeys<T, kDropout>(args, buffers, head, rows, keys);
  }
#endif
}

// Copies tiles of queries and of the gradient of their outputs, and loads their lse and delta. One
// warp runs this.
template <typename Of>
__device__ void ProduceQueries(const Maps& maps, const AttentionArgs& args,
                               const Buffers<Of>& buffers, const RowsOfBlock& rows,
                               const QueriesOfSequence& queries) {
  const int64_t group = blockIdx.y, begin = queries.FirstThatSees(rows.begin);
  const int of_head = Tiles<Of>(queries.EndThatSees(rows.end - 1) - begin);
  const int lane = threadIdx.x % kWarp;
  if (of_head == 0) return;
  if (lane == 0) CopyOwn(maps, buffers, 0, group, rows.begin);
  for (int tile = 0; tile < of_head * args.group_heads; ++tile) {
    const int64_t head = tile / of_head, first = begin + int64_t{tile % of_head} * Of::kOther;
    buffers.ring.WaitUntilEmpty(tile);
    // The copies fly while the numbers are loaded.
    if (lane == 0) CopyPassing(maps, buffers, tile, head, group, first);
    for (int i = lane; i < Of::kOther; i += kWarp) {
      const bool inside = first + i < queries.end;
      buffers.RowNumbers(0, tile)[i] = inside ? FiniteLse(args, first + i, {group, head}) : 0.0f;
      buffers.RowNumbers(1, tile)[i] = inside ? args.Delta(first + i, group, head) : 0.0f;
    }
    Arrive(buffers.ring.full + tile % Of::kStages);
  }
}

// The numbers of a lane's two columns of tile n: loaded at once, or each when it is needed.
template <bool kAtOnce>
struct ColumnPair {
  const float* numbers;
  int n;
  Vector<float, 2> loaded;

  __device__ ColumnPair(const float* numbers, int n) : numbers(numbers), n(n) {
    if constexpr (kAtOnce) loaded = Load<float, 2>(numbers, ColumnOf(n, 0) / 2);
  }
  __device__ float operator[](int i) const {
    if constexpr (kAtOnce) return loaded.values[i % 2];
    return numbers[ColumnOf(n, i)];
  }
};

template <typename T, bool kDropout, typename Of>
__device__ void ConsumeQueries(const AttentionArgs& args, const Buffers<Of>& buffers,
                               const RowsOfBlock& rows, const QueriesOfSequence& queries) {
  constexpr int kHead = Of::kHead;
  // With wide heads the sums of products leave no registers for more.
  constexpr bool kHasRegisters = kHead == 64;
  constexpr int kColumns = Of::kOther / 8;
  const int group = static_cast<int>(threadIdx.x) / kWarpgroup - 1, in_own = group * kGroupRows;
  const int64_t first = rows.begin + in_own, row = rows.begin + RowOf(group);
  const int64_t begin = queries.FirstThatSees(rows.begin);
  const int64_t mine = first < rows.end ? queries.FirstThatSees(first) : queries.end;
  const int64_t all_from = queries.FirstThatSees(first + kGroupRows - 1);
  const auto end_seeing = [&](int64_t key) {
    return kDropout ? queries.end : queries.EndThatSees(key);
  };
  const int of_head = Tiles<Of>(end_seeing(rows.end - 1) - begin);

  const float scale = args.scale * kLog2E;
  float dk[kHead / 8][4], dv[kHead / 8][4], p[kColumns][4], ds[kColumns][4];
  uint32_t packed_p[kColumns / 2][4], packed_ds[kColumns / 2][4];
  PhiloxKey key;
  Kept<kColumns> kept = {};
  const auto draw = [&](int64_t begin_of_tile) {
    if constexpr (kDropout) {
      const int64_t row_key = row - args.cu_seqlens_k[rows.sequence];
      kept = QueriesThatKeep<kColumns>(args, key, row_key, begin_of_tile, queries.end);
    }
  };
  SetZero(dk);
  SetZero(dv);
  if (of_head > 0) WaitForPhase(buffers.own_full, 0);
  for (int tile = 0; tile < of_head * args.group_heads; ++tile) {
    const int64_t begin_of_tile = begin + int64_t{tile % of_head} * Of::kOther;
    if constexpr (kDropout) {
      if (tile % of_head == 0)
        key = DropoutKey(args, blockIdx.y * args.group_heads + tile / of_head);
    }
    buffers.ring.WaitUntilFull(tile);
    if (begin_of_tile + Of::kOther <= mine || mine >= queries.end) {
      buffers.ring.Release(tile);
      continue;
    }
    if constexpr (!kHasRegisters) draw(begin_of_tile);
    MultiplyRows<T>(buffers.Own(0), in_own, buffers.Passing(0, tile), p);
    MultiplyRows<T>(buffers.Own(1), in_own, buffers.Passing(1, tile), ds);
    const float* const lse = buffers.RowNumbers(0, tile);
    const float* const delta = buffers.RowNumbers(1, tile);
    if constexpr (kHasRegisters) draw(begin_of_tile);
    WaitForProducts<1>();
    Settle(p);
    if (begin_of_tile < all_from || begin_of_tile + Of::kOther > end_seeing(first)) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        HideAllBut(queries.FirstThatSees(row + 8 * r) - begin_of_tile,
                   end_seeing(row + 8 * r) - begin_of_tile, r, p);
      }
    }
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      const ColumnPair<kHasRegisters> of_columns(lse, n);
#pragma unroll
      for (int i = 0; i < 4; ++i) p[n][i] = Exp2(fmaf(p[n][i], scale, -of_columns[i]));
    }
    WaitForProducts<0>();
    Settle(ds);
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      const ColumnPair<kHasRegisters> of_columns(delta, n);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const bool dropped = kDropout && !kept.Has(n, i);
        if constexpr (kDropout) ds[n][i] = dropped ? 0 : ds[n][i] * args.dropout_scale;
        ds[n][i] = p[n][i] * (ds[n][i] - of_columns[i]);
        if (dropped) p[n][i] = 0;
      }
    }
    Pack<T>(p, packed_p);
    Pack<T>(ds, packed_ds);
    AddWeightedRows<T>(packed_p, buffers.Passing(1, tile), dv);
    AddWeightedRows<T>(packed_ds, buffers.Passing(0, tile), dk);
    WaitForProducts<0>();
    Settle(dv);
    Settle(dk);
    buffers.ring.Release(tile);
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const bool is_there = row + 8 * r < rows.end;
    StoreRow(is_there, args.dk.Row<T>(row + 8 * r, blockIdx.y, 0), r, dk, args.scale);
    StoreRow(is_there, args.dv.Row<T>(row + 8 * r, blockIdx.y, 0), r, dv,
             kDropout ? args.dropout_scale : 1.0f);
  }
}

// The gradients of keys and values. Grid: x counts tiles of keys, y counts groups.
template <typename T, typename Of, bool kDropout>
__global__ void __launch_bounds__(Of::kThreads, 1)
    BackwardKey(const __grid_constant__ Maps maps, const __grid_constant__ AttentionArgs args) {
#ifdef MEGATRON_HAS_HOPPER_INSTRUCTIONS
  extern __shared__ __align__(16) char memory[];
  __shared__ uint64_t barriers[Buffers<Of>::kBarriers];
  const RowsOfBlock rows = FindRows(args.cu_seqlens_k, args.sequences, blockIdx.x, Of::kRows);
  if (rows.begin >= rows.end) return;
  const QueriesOfSequence queries(args, rows.sequence);
  const Buffers<Of> buffers(AlignToAtoms(memory), barriers);
  if (threadIdx.x == 0) buffers.Init(kWarp + 1);
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    GiveRegisters<Of::kProducerRegisters>();
    if (threadIdx.x < kWarp) ProduceQueries(maps, args, buffers, rows, queries);
  } else {
    TakeRegisters<Of::kConsumerRegisters>();
    ConsumeQueries<T, kDropout>(args, buffers, rows, queries);
  }
#endif
}

template <typename Of, auto kKernel>
void Launch(const Stream& stream, const AttentionArgs& args, const Maps& maps, int64_t rows,
            int64_t heads) {
  if (rows == 0 || heads == 0) return;
  AllowShared<kKernel, Of::kSharedBytes>();
  const int64_t blocks = BlocksOfSequences(rows, args.sequences, Of::kRows);
  kKernel<<<dim3(Blocks(blocks, 1), static_cast<unsigned>(heads)), Of::kThreads,
            Of::kSharedBytes + kSlack, Handle(stream)>>>(maps, args);
  CheckLaunched("attention's gradients on Hopper");
}

}  // namespace
}  // namespace hopper

void HopperAttentionBackward(const Stream& stream, DType dtype, const AttentionArgs& args) {
  using hopper::MapOfKeys;
  using hopper::MapOfQueries;
  hopper::WithVariant(dtype, args, [&](auto* type, auto head, auto dropout) {
    using T = std::remove_pointer_t<decltype(type)>;
    using OfQueries = hopper::QueryShape<head.value>;
    using OfKeys = hopper::KeyShape<head.value>;
    const auto queries = [&](const Operand& x, int rows) {
      return MapOfQueries(dtype, args, x, rows);
    };
    const auto keys = [&](const Operand& x, int rows) { return MapOfKeys(dtype, args, x, rows); };
    hopper::Launch<OfQueries, hopper::BackwardQuery<T, OfQueries, dropout.value>>(
        stream, args,
        {{queries(args.q, OfQueries::kRows), queries(args.dout, OfQueries::kRows)},
         {keys(args.k, OfQueries::kOther), keys(args.v, OfQueries::kOther)}},
        args.queries, args.groups * args.group_heads);
    hopper::Launch<OfKeys, hopper::BackwardKey<T, OfKeys, dropout.value>>(
        stream, args,
        {{keys(args.k, OfKeys::kRows), keys(args.v, OfKeys::kRows)},
         {queries(args.q, OfKeys::kOther), queries(args.dout, OfKeys::kOther)}},
        args.keys, args.groups);
  });
}

}  // namespace megatron::ops::cuda
