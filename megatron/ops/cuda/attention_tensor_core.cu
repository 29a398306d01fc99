// Attention with tensor cores, for bf16 and fp16 and heads of 64 and 128 channels, where values are
// as wide as keys, with any mask, dropout and parts of keys that attention.cu supports.
// attention.cu takes the other calls.
//
// A block has 64 rows, 16 per warp: queries in Forward and BackwardQuery, keys in BackwardKey. They
// stay in registers while tiles of the other side pass through shared memory. Scores never leave
// registers either: the rounded sums of one product are the left operand of the next. No row is
// written by two warps, so sums need no atomics, and have one order; the price is that backward
// computes the scores twice.
//
// The algorithm is that of T. Dao, "FlashAttention-2", arXiv 2307.08691.
#include <cmath>

#include "megatron/ops/cuda/attention.cuh"
#include "megatron/ops/cuda/attention_delta.cuh"
#include "megatron/ops/cuda/device.cuh"
#include "megatron/ops/cuda/dynamic_shared.cuh"
#include "megatron/ops/cuda/tensor_core.cuh"

namespace megatron::ops::cuda {
namespace {

constexpr int kWarpRows = 16;
constexpr int kBlockWarps = 4;
constexpr int kBlockThreads = kBlockWarps * kWarp;
constexpr int kBlockRows = kBlockWarps * kWarpRows;
constexpr float kLog2E = 1.44269504f;

// Distance of rows of a tile, in elements. It is padded so that pieces of 16 bytes of eight rows
// lie in different banks.
template <int kHead>
constexpr int kPitch = kHead + 8;

// Number of rows of the other side per tile. BackwardKey holds two sums of a whole head, so for
// large heads the tile is smaller.
template <int kHead>
constexpr int kKeyTile = 64;
template <int kHead>
constexpr int kQueryTile = kHead <= 64 ? 64 : 32;

// Loads rows [begin, begin + kRows) of an operand with all threads of the block; rows from `end` on
// are zeros.
template <typename T, int kHead, int kRows>
__device__ void LoadTile(const Operand& operand, int64_t group, int64_t head, int64_t begin,
                         int64_t end, T* tile) {
  constexpr int kChunks = kHead / 8;
  for (int i = threadIdx.x; i < kRows * kChunks; i += kBlockThreads) {
    const int row = i / kChunks, chunk = i % kChunks;
    Vector<T, 8> values = {};
    if (begin + row < end) {
      values = Load<T, 8>(operand.Row<const T>(begin + row, group, head), chunk);
    }
    Store<T, 8>(tile + row * kPitch<kHead>, chunk, values);
  }
}

// The warp's 16 rows, as left operands.
template <typename T, int kHead>
struct RowFragments {
  uint32_t of[kHead / 16][4];

  // `tile` holds the block's rows.
  __device__ void Load(const T* tile) {
    const int lane = threadIdx.x % kWarp, first = threadIdx.x / kWarp * kWarpRows;
#pragma unroll
    for (int k = 0; k < kHead / 16; ++k) {
      LoadMatrices(tile + (first + lane % 16) * kPitch<kHead> + 16 * k + lane / 16 * 8, of[k]);
    }
  }
};

// Loads the block's rows of an operand into registers through `tile`, which other warps may be
// reading.
template <typename T, int kHead>
__device__ void LoadRows(const Operand& operand, int64_t group, int64_t head, int64_t end, T* tile,
                         RowFragments<T, kHead>* rows) {
  __syncthreads();
  LoadTile<T, kHead, kBlockRows>(operand, group, head, int64_t{blockIdx.x} * kBlockRows, end, tile);
  __syncthreads();
  rows->Load(tile);
}

// products[n] (=): the warp's rows times rows [8 n, 8 n + 8) of the tile.
template <typename T, int kHead, int kTiles>
__device__ void MultiplyRows(const RowFragments<T, kHead>& rows, const T* tile,
                             float (&products)[kTiles][4]) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    for (float& value : products[n]) value = 0;
  }
#pragma unroll
  for (int k = 0; k < kHead / 16; ++k) {
#pragma unroll
    for (int n = 0; n < kTiles; n += 2) {
      uint32_t b[4];
      const int row = 8 * n + lane % 8 + lane / 16 * 8;
      LoadMatrices(tile + row * kPitch<kHead> + 16 * k + lane / 8 % 2 * 8, b);
      MultiplyAdd<T>(rows.of[k], b[0], b[1], products[n]);
      MultiplyAdd<T>(rows.of[k], b[2], b[3], products[n + 1]);
    }
  }
}

// sums += weights, whose columns are the rows of the tile, times the tile.
template <typename T, int kHead, int kTiles>
__device__ void AddWeightedRows(const float (&weights)[kTiles][4], const T* tile,
                                float (&sums)[kHead / 8][4]) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int j = 0; j < kTiles / 2; ++j) {
    const float(&left)[4] = weights[2 * j], (&right)[4] = weights[2 * j + 1];
    const uint32_t a[4] = {PackPair<T>(left[0], left[1]), PackPair<T>(left[2], left[3]),
                           PackPair<T>(right[0], right[1]), PackPair<T>(right[2], right[3])};
#pragma unroll
    for (int n = 0; n < kHead / 8; n += 2) {
      uint32_t b[4];
      LoadMatricesTransposed(tile + (16 * j + lane % 16) * kPitch<kHead> + 8 * n + lane / 16 * 8,
                             b);
      MultiplyAdd<T>(a, b[0], b[1], sums[n]);
      MultiplyAdd<T>(a, b[2], b[3], sums[n + 1]);
    }
  }
}

// The lane's two rows. Element i of c belongs to row i / 2 and column 2 (lane % 4) + i % 2.
struct LaneRows {
  int64_t row[2];
  VisibleRange visible[2];

  template <typename See>
  __device__ LaneRows(int64_t rows, See see) {
    const int64_t first = int64_t{blockIdx.x} * kBlockRows + threadIdx.x / kWarp * kWarpRows;
    for (int i = 0; i < 2; ++i) {
      row[i] = first + threadIdx.x % kWarp / 4 + 8 * i;
      if (row[i] < rows) visible[i] = see(row[i]);
    }
  }
  __device__ bool Sees(int i, int64_t other) const {
    return other >= visible[i / 2].begin && other < visible[i / 2].end;
  }
};

// The union of the ranges of the rows of a block. Both ends of a range ascend with the row.
template <typename See>
__device__ VisibleRange VisibleRangeOfBlock(int64_t rows, See see) {
  const int64_t first = int64_t{blockIdx.x} * kBlockRows;
  const int64_t last = min(first + kBlockRows, rows) - 1;
  return {see(first).begin, see(last).end, 0};
}

__device__ int64_t Column(int64_t begin, int n, int i) {
  return begin + 8 * n + threadIdx.x % 4 * 2 + i % 2;
}

// Row i of the lane = keep * itself + factor * sums; only fp32 can be kept.
template <typename T, int kColumns>
__device__ void WriteRow(const Operand& x, int64_t token, int64_t group, int64_t head, int i,
                         const float (&sums)[kColumns][4], float factor, float keep) {
#pragma unroll
  for (int n = 0; n < kColumns; ++n) {
    const int64_t column = Column(0, n, 0);
    const float values[2] = {sums[n][2 * i] * factor, sums[n][2 * i + 1] * factor};
    if (x.is_fp32) {
      float* const at = x.Row<float>(token, group, head) + column;
      for (int j = 0; j < 2; ++j) at[j] = (keep == 0 ? 0.0f : keep * at[j]) + values[j];
    } else {
      const Vector<T, 2> pair = {{FromFloat<T>(values[0]), FromFloat<T>(values[1])}};
      Store<T, 2>(x.Row<T>(token, group, head), column / 2, pair);
    }
  }
}

// Grid: x counts tiles of queries, y counts groups * group_heads.
template <typename T, int kHead>
__global__ void __launch_bounds__(kBlockThreads) Forward(AttentionArgs args) {
  constexpr int kTiles = kKeyTile<kHead> / 8;
  extern __shared__ __align__(16) float memory[];
  T* const keys = reinterpret_cast<T*>(memory);
  T* const values = keys + kKeyTile<kHead> * kPitch<kHead>;
  const int64_t group = blockIdx.y / args.group_heads, head = blockIdx.y % args.group_heads;
  const auto see = [&](int64_t query) { return KeysSeenBy(args, query); };
  const LaneRows mine(args.queries, see);
  const VisibleRange block = VisibleRangeOfBlock(args.queries, see);
  const HeadDropout dropout(args, blockIdx.y);
  RowFragments<T, kHead> q;
  LoadRows(args.q, group, head, args.queries, keys, &q);
  float before[2] = {-INFINITY, -INFINITY};  // the log-sum-exp of the previous parts
  for (int r = 0; r < 2; ++r) {
    if (args.add_to_queries && mine.row[r] < args.queries)
      before[r] = args.Lse(mine.row[r], group, head);
  }

  const float scale = args.scale * kLog2E;
  float max[2] = {-INFINITY, -INFINITY}, sum[2] = {}, out[kHead / 8][4] = {};
  for (int64_t begin = block.begin; begin < block.end; begin += kKeyTile<kHead>) {
    __syncthreads();
    LoadTile<T, kHead, kKeyTile<kHead>>(args.k, group, 0, begin, block.end, keys);
    LoadTile<T, kHead, kKeyTile<kHead>>(args.v, group, 0, begin, block.end, values);
    __syncthreads();
    float p[kTiles][4];
    MultiplyRows(q, keys, p);
    float top[2] = {max[0], max[1]};
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        p[n][i] = mine.Sees(i, Column(begin, n, i)) ? p[n][i] * scale : -INFINITY;
        top[i / 2] = fmaxf(top[i / 2], p[n][i]);
      }
    }
    float base[2], correction[2];
    for (int r = 0; r < 2; ++r) {
      top[r] = QuadMax(top[r]);
      base[r] = top[r] == -INFINITY ? 0 : top[r];  // the row has seen no key yet
      correction[r] = exp2f(max[r] - base[r]);
      sum[r] *= correction[r];
      max[r] = top[r];
    }
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        p[n][i] = exp2f(p[n][i] - base[i / 2]);
        sum[i / 2] += p[n][i];
        if (args.dropout_threshold != 0 && p[n][i] != 0) {
          p[n][i] *=
              dropout.Factor(mine.row[i / 2], Column(begin, n, i), mine.visible[i / 2].first_key);
        }
      }
    }
#pragma unroll
    for (int n = 0; n < kHead / 8; ++n) {
      for (int i = 0; i < 4; ++i) out[n][i] *= correction[i / 2];
    }
    AddWeightedRows<T, kHead>(p, values, out);
  }
  for (int r = 0; r < 2; ++r) {
    sum[r] = QuadSum(sum[r]);
    if (mine.row[r] >= args.queries) continue;
    if (args.largest_scores != nullptr && threadIdx.x % 4 == 0)
      RaiseTo(max[r] / kLog2E, args.largest_scores + blockIdx.y);
    float lse = sum[r] > 0 ? max[r] / kLog2E + logf(sum[r]) : -INFINITY;
    float factor = sum[r] > 0 ? 1 / sum[r] : 0.0f, keep = 0;
    if (args.add_to_queries) {
      if (sum[r] == 0) continue;
      const float part = lse;
      lse = fmaxf(before[r], part) + log1pf(expf(-fabsf(before[r] - part)));
      keep = expf(before[r] - lse);
      factor *= expf(part - lse);
    }
    WriteRow<T>(args.out, mine.row[r], group, head, r, out, factor, keep);
    if (threadIdx.x % 4 == 0) args.Lse(mine.row[r], group, head) = lse;
  }
}

// Also computes delta, for BackwardKey. The grid is that of Forward.
template <typename T, int kHead>
__global__ void __launch_bounds__(kBlockThreads) BackwardQuery(AttentionArgs args) {
  constexpr int kTiles = kKeyTile<kHead> / 8;
  extern __shared__ __align__(16) float memory[];
  T* const keys = reinterpret_cast<T*>(memory);
  T* const values = keys + kKeyTile<kHead> * kPitch<kHead>;
  const int64_t group = blockIdx.y / args.group_heads, head = blockIdx.y % args.group_heads;
  const auto see = [&](int64_t query) { return KeysSeenBy(args, query); };
  const LaneRows mine(args.queries, see);
  const VisibleRange block = VisibleRangeOfBlock(args.queries, see);
  const HeadDropout dropout(args, blockIdx.y);
  RowFragments<T, kHead> q, dout;
  LoadRows(args.q, group, head, args.queries, keys, &q);
  LoadRows(args.dout, group, head, args.queries, keys, &dout);
  float lse[2] = {}, delta[2] = {};
  for (int r = 0; r < 2; ++r) {
    const bool is_there = mine.row[r] < args.queries;
    delta[r] = ComputeDelta<T, kHead>(args, mine.row[r], group, head, is_there);
    if (is_there) lse[r] = args.Lse(mine.row[r], group, head) * kLog2E;
  }

  const float scale = args.scale * kLog2E;
  float dq[kHead / 8][4] = {};
  for (int64_t begin = block.begin; begin < block.end; begin += kKeyTile<kHead>) {
    __syncthreads();
    LoadTile<T, kHead, kKeyTile<kHead>>(args.k, group, 0, begin, block.end, keys);
    LoadTile<T, kHead, kKeyTile<kHead>>(args.v, group, 0, begin, block.end, values);
    __syncthreads();
    float ds[kTiles][4], dp[kTiles][4];
    MultiplyRows(q, keys, ds);
    MultiplyRows(dout, values, dp);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int64_t key = Column(begin, n, i);
        const float p = mine.Sees(i, key) ? exp2f(ds[n][i] * scale - lse[i / 2]) : 0.0f;
        if (args.dropout_threshold != 0 && p != 0) {
          dp[n][i] *= dropout.Factor(mine.row[i / 2], key, mine.visible[i / 2].first_key);
        }
        ds[n][i] = p * (dp[n][i] - delta[i / 2]);
      }
    }
    AddWeightedRows<T, kHead>(ds, keys, dq);
  }
  for (int r = 0; r < 2; ++r) {
    if (mine.row[r] >= args.queries) continue;
    WriteRow<T>(args.dq, mine.row[r], group, head, r, dq, args.scale, args.add_to_queries);
  }
}

// Grid: x counts tiles of keys, y counts groups. The heads of the group are processed one after
// another.
template <typename T, int kHead>
__global__ void __launch_bounds__(kBlockThreads) BackwardKey(AttentionArgs args) {
  constexpr int kRows = kQueryTile<kHead>, kTiles = kRows / 8;
  extern __shared__ __align__(16) float memory[];
  float* const lse = memory;
  float* const delta = lse + kRows;
  T* const queries = reinterpret_cast<T*>(delta + kRows);
  T* const douts = queries + kBlockRows * kPitch<kHead>;
  const int64_t group = blockIdx.y;
  const auto see = [&](int64_t key) { return QueriesThatSee(args, key); };
  const LaneRows mine(args.keys, see);
  const VisibleRange block = VisibleRangeOfBlock(args.keys, see);
  RowFragments<T, kHead> k, v;
  LoadRows(args.k, group, 0, args.keys, queries, &k);
  LoadRows(args.v, group, 0, args.keys, queries, &v);

  const float scale = args.scale * kLog2E;
  float dk[kHead / 8][4] = {}, dv[kHead / 8][4] = {};
  for (int64_t head = 0; head < args.group_heads; ++head) {
    const HeadDropout dropout(args, group * args.group_heads + head);
    for (int64_t begin = block.begin; begin < block.end; begin += kRows) {
      __syncthreads();
      LoadTile<T, kHead, kRows>(args.q, group, head, begin, block.end, queries);
      LoadTile<T, kHead, kRows>(args.dout, group, head, begin, block.end, douts);
      for (int row = threadIdx.x; row < kRows; row += kBlockThreads) {
        const bool inside = begin + row < block.end;
        lse[row] = inside ? args.Lse(begin + row, group, head) * kLog2E : 0.0f;
        delta[row] = inside ? args.Delta(begin + row, group, head) : 0.0f;
      }
      __syncthreads();
      float p[kTiles][4], ds[kTiles][4];
      MultiplyRows(k, queries, p);
      MultiplyRows(v, douts, ds);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int row = static_cast<int>(Column(0, n, i));
          const int64_t query = begin + row;
          const float whole = mine.Sees(i, query) ? exp2f(p[n][i] * scale - lse[row]) : 0.0f;
          float factor = 1;
          if (args.dropout_threshold != 0 && whole != 0) {
            factor = dropout.Factor(query, mine.row[i / 2], mine.visible[i / 2].first_key);
          }
          p[n][i] = whole * factor;
          ds[n][i] = whole * (factor * ds[n][i] - delta[row]);
        }
      }
      AddWeightedRows<T, kHead>(p, douts, dv);
      AddWeightedRows<T, kHead>(ds, queries, dk);
    }
  }
  for (int r = 0; r < 2; ++r) {
    if (mine.row[r] >= args.keys) continue;
    WriteRow<T>(args.dk, mine.row[r], group, 0, r, dk, args.scale, args.add_to_keys);
    WriteRow<T>(args.dv, mine.row[r], group, 0, r, dv, 1.0f, args.add_to_keys);
  }
}

// Two tiles of the block's rows hold two of any other.
template <typename T, int kHead>
constexpr size_t kSharedBytes = 2 * kBlockRows* kPitch<kHead> * sizeof(T) +
                                2 * kQueryTile<kHead> * sizeof(float);

template <typename Kernel>
void Launch(Kernel kernel, const Stream& stream, const AttentionArgs& args, int64_t rows,
            int64_t heads, size_t shared_bytes) {
  if (rows == 0 || heads == 0) return;
  CHECK_EQ(AllowDynamicShared(kernel, shared_bytes), cudaSuccess);
  kernel<<<dim3(Blocks(rows, kBlockRows), static_cast<unsigned>(heads)), kBlockThreads,
           shared_bytes, Handle(stream)>>>(args);
  CheckLaunched("attention by tensor cores");
}

// Calls body with the dtype and the head dim as types.
template <typename Body>
void WithTypeAndHead(DType dtype, int head_dim, Body body) {
  const auto with_head = [&](auto* type) {
    if (head_dim == 64) return body(type, std::integral_constant<int, 64>());
    return body(type, std::integral_constant<int, 128>());
  };
  if (dtype == DType::kBFloat16) return with_head(static_cast<__nv_bfloat16*>(nullptr));
  with_head(static_cast<__half*>(nullptr));
}

// Returns whether rows can be read and written in pieces of 16 bytes.
bool HasAlignedRows(const Operand& x) {
  return x.data == nullptr || (IsAligned({x.data}) && x.token_stride % 8 == 0 &&
                               x.group_stride % 8 == 0 && x.head_stride % 8 == 0);
}

}  // namespace

bool TensorCoresTake(DType dtype, const AttentionArgs& args) {
  if (dtype == DType::kFloat32 || args.softcap > 0 ||
      (args.head_dim != 64 && args.head_dim != 128) || args.value_dim != args.head_dim) {
    return false;
  }
  for (const Operand* x :
       {&args.q, &args.k, &args.v, &args.out, &args.dout, &args.dq, &args.dk, &args.dv}) {
    if (!HasAlignedRows(*x)) return false;
  }
  return true;
}

void TensorCoreAttentionForward(const Stream& stream, DType dtype, const AttentionArgs& args) {
  WithTypeAndHead(dtype, args.head_dim, [&](auto* type, auto head) {
    using T = std::remove_pointer_t<decltype(type)>;
    Launch(Forward<T, head.value>, stream, args, args.queries, args.groups * args.group_heads,
           kSharedBytes<T, head.value>);
  });
}

void TensorCoreAttentionBackward(const Stream& stream, DType dtype, const AttentionArgs& args) {
  WithTypeAndHead(dtype, args.head_dim, [&](auto* type, auto head) {
    using T = std::remove_pointer_t<decltype(type)>;
    constexpr size_t kBytes = kSharedBytes<T, head.value>;
    Launch(BackwardQuery<T, head.value>, stream, args, args.queries, args.groups * args.group_heads,
           kBytes);
    Launch(BackwardKey<T, head.value>, stream, args, args.keys, args.groups, kBytes);
  });
}

}  // namespace megatron::ops::cuda
