// Attention for any shape, mask and dtype, in plain fp32 arithmetic: the reference for the other
// attention kernels.
//
// A warp owns a row: a query in Forward and BackwardQuery, a key in BackwardKey. The rows of a
// block share tiles of 32 rows of the other side in shared memory. A lane first computes the score
// of one row of the tile, then sums up one column of the head. No row is written by two warps, so
// sums need no atomics, and have one order.
//
// The algorithm is that of T. Dao, "FlashAttention-2", arXiv 2307.08691.
#include <algorithm>
#include <cmath>

#include "megatron/ops/cuda/attention.cuh"
#include "megatron/ops/cuda/device.cuh"
#include "megatron/ops/cuda/dynamic_shared.cuh"
#include "megatron/ops/cuda/hopper/attention.h"
#include "megatron/ops/cuda/own_attention.h"

namespace megatron::ops::cuda {
namespace {

constexpr int kTile = kWarp;
constexpr int kMaxHeadDim = 256;

// Shared memory of a block: a tile of queries or keys and one of values or gradients of outputs,
// padded so that lanes read rows without conflicts, and a row of either kind of each warp.
struct SharedTiles {
  float *first, *second;          // [kTile, dim + 1]
  float *own_first, *own_second;  // [kWarps, dim]; each warp uses its own row

  __device__ SharedTiles(float* memory, const AttentionArgs& args)
      : pitch(args.head_dim + 1), second_pitch(args.value_dim + 1) {
    const int warp = threadIdx.x / kWarp;
    first = memory;
    second = first + kTile * pitch;
    own_first = second + kTile * second_pitch + warp * args.head_dim;
    own_second = second + kTile * second_pitch + kWarps * args.head_dim + warp * args.value_dim;
  }
  static size_t Bytes(const AttentionArgs& args) { return sizeof(float) * Floats(args); }
  __host__ __device__ static int Floats(const AttentionArgs& args) {
    return kTile * (args.head_dim + args.value_dim + 2) + kWarps * (args.head_dim + args.value_dim);
  }

  const int pitch, second_pitch;
};

// Loads a row with the lanes of a warp.
template <typename T>
__device__ void LoadRow(const T* row, int head_dim, float* out) {
  for (int d = threadIdx.x % kWarp; d < head_dim; d += kWarp) out[d] = ToFloat(row[d]);
  __syncwarp();
}

// Loads rows [begin, begin + kTile) of an operand with all threads of the block; rows from `end` on
// are zeros.
template <typename T>
__device__ void LoadTile(const Operand& operand, int64_t group, int64_t head, int64_t begin,
                         int64_t end, int head_dim, int pitch, float* tile) {
  for (int i = threadIdx.x; i < kTile * head_dim; i += kThreads) {
    const int row = i / head_dim, d = i % head_dim;
    tile[row * pitch + d] =
        begin + row < end ? ToFloat(operand.Row<const T>(begin + row, group, head)[d]) : 0.0f;
  }
}

__device__ float Dot(const float* a, const float* b, int count) {
  float sum = 0;
  for (int d = 0; d < count; ++d) sum = fmaf(a[d], b[d], sum);
  return sum;
}

// sums[c] += the sum over the tile's rows j of the lanes' weights times column (c * 32 + lane).
template <int kColumns>
__device__ void AddWeightedRows(float weight, const float* tile, int pitch, int head_dim,
                                float (&sums)[kColumns]) {
  const int lane = threadIdx.x % kWarp;
  for (int j = 0; j < kTile; ++j) {
    const float w = __shfl_sync(0xffffffffu, weight, j);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const int d = c * kWarp + lane;
      if (d < head_dim) sums[c] = fmaf(w, tile[j * pitch + d], sums[c]);
    }
  }
}

template <typename T, int kColumns>
__device__ void StoreRow(T* row, int head_dim, const float (&values)[kColumns], float factor) {
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    const int d = c * kWarp + threadIdx.x % kWarp;
    if (d < head_dim) row[d] = FromFloat<T>(values[c] * factor);
  }
}

// row = keep * row + factor * values. The row is of type T or fp32; only fp32 can be kept.
template <typename T, int kColumns>
__device__ void WriteRow(const Operand& x, int64_t token, int64_t group, int64_t head, int head_dim,
                         const float (&values)[kColumns], float factor, float keep) {
  if (!x.is_fp32) return StoreRow(x.Row<T>(token, group, head), head_dim, values, factor);
  float* const row = x.Row<float>(token, group, head);
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    const int d = c * kWarp + threadIdx.x % kWarp;
    if (d < head_dim) row[d] = (keep == 0 ? 0.0f : keep * row[d]) + values[c] * factor;
  }
}

// The range of tokens that any row of the block sees. Every thread must construct it.
struct BlockVisibleRange {
  int64_t begin, end;

  __device__ BlockVisibleRange(const VisibleRange& mine, bool active) {
    __shared__ long long shared_begin[kWarps];
    __shared__ long long shared_end[kWarps];
    const int warp = threadIdx.x / kWarp;
    const bool sees = active && mine.begin < mine.end;
    if (threadIdx.x % kWarp == 0) {
      shared_begin[warp] = sees ? mine.begin : (1ll << 62);
      shared_end[warp] = sees ? mine.end : 0;
    }
    __syncthreads();
    begin = shared_begin[0];
    end = shared_end[0];
    for (int w = 1; w < kWarps; ++w) {
      begin = min(begin, static_cast<int64_t>(shared_begin[w]));
      end = max(end, static_cast<int64_t>(shared_end[w]));
    }
  }
};

// The gradient of a head's bias: each warp sums it over its query, and the block over its warps.
class BiasSums {
 public:
  // `memory` is shared, [kWarps, width].
  __device__ BiasSums(const AttentionArgs& args, const HeadBias& bias, float* memory)
      : args_(args), width_(bias.width()), all_(memory) {
    if (args.bias_sums == nullptr) return;
    for (int i = threadIdx.x % kWarp; i < width_; i += kWarp) mine()[i] = 0;
    __syncwarp();
  }
  // Each lane passes the gradient of the score of a different key. All lanes must call it.
  __device__ void Add(int entry, float ds) {
    if (args_.bias_sums == nullptr) return;
    const int last = width_ - 1;
    const bool is_first = entry == 0, is_last = entry == last && last > 0;
    const float first_sum = WarpSum(is_first ? ds : 0.0f);
    const float last_sum = WarpSum(is_last ? ds : 0.0f);
    if (!is_first && !is_last) mine()[entry] += ds;
    if (threadIdx.x % kWarp == 0) {
      mine()[0] += first_sum;
      if (last > 0) mine()[last] += last_sum;
    }
    __syncwarp();
  }
  // All threads of the block must call it.
  __device__ void Finish() const {
    if (args_.bias_sums == nullptr) return;
    __syncthreads();
    float* const out =
        args_.bias_sums + (static_cast<int64_t>(blockIdx.x) * gridDim.y + blockIdx.y) * width_;
    for (int i = threadIdx.x; i < width_; i += kThreads) {
      float sum = 0;
      for (int warp = 0; warp < kWarps; ++warp) sum += all_[warp * width_ + i];
      out[i] = sum;
    }
  }

 private:
  __device__ float* mine() const { return all_ + threadIdx.x / kWarp * width_; }

  const AttentionArgs& args_;
  const int width_;
  float* const all_;
};

// dbias [width, heads] += the sums of all blocks, in their order. Each thread has one element.
__global__ void __launch_bounds__(kThreads)
    AddBiasSums(const float* sums, int64_t blocks, int64_t heads, int64_t width, float* dbias) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= heads * width) return;
  const int64_t head = i / width, w = i % width;
  float sum = 0;
  for (int64_t block = 0; block < blocks; ++block) sum += sums[(block * heads + head) * width + w];
  dbias[w * heads + head] += sum;
}

// Grid: x counts tiles of kWarps queries, y counts groups * group_heads.
template <typename T, int kColumns>
__global__ void __launch_bounds__(kThreads) Forward(AttentionArgs args) {
  extern __shared__ __align__(16) float memory[];
  const SharedTiles shared(memory, args);
  const int lane = threadIdx.x % kWarp;
  const int64_t query = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  const int64_t group = blockIdx.y / args.group_heads, head = blockIdx.y % args.group_heads;
  const bool active = query < args.queries;
  const VisibleRange visible = active ? KeysSeenBy(args, query) : VisibleRange();
  const BlockVisibleRange block(visible, active);
  const HeadDropout dropout(args, blockIdx.y);
  const HeadBias bias(args, blockIdx.y);
  if (active) LoadRow(args.q.Row<const T>(query, group, head), args.head_dim, shared.own_first);

  float max = -INFINITY, sum = 0, out[kColumns] = {};
  for (int64_t begin = block.begin; begin < block.end; begin += kTile) {
    __syncthreads();
    LoadTile<T>(args.k, group, 0, begin, block.end, args.head_dim, shared.pitch, shared.first);
    LoadTile<T>(args.v, group, 0, begin, block.end, args.value_dim, shared.second_pitch,
                shared.second);
    __syncthreads();
    const int64_t key = begin + lane;
    const bool seen = active && key >= visible.begin && key < visible.end;
    float score = -INFINITY;
    if (seen) {
      score = Capped(args, args.scale * Dot(shared.own_first, shared.first + lane * shared.pitch,
                                            args.head_dim)) +
              bias.At(query, key, visible.shift);
    }
    const float new_max = fmaxf(max, WarpMax(score));
    if (new_max == -INFINITY) continue;  // uniform over the warp
    const float p = seen ? expf(score - new_max) : 0.0f;
    const float correction = expf(max - new_max);
    sum = sum * correction + WarpSum(p);
    for (float& value : out) value *= correction;
    const float kept = seen ? p * dropout.Factor(query, key, visible.first_key) : 0.0f;
    AddWeightedRows(kept, shared.second, shared.second_pitch, args.value_dim, out);
    max = new_max;
  }
  if (!active) return;
  if (args.largest_scores != nullptr && lane == 0) RaiseTo(max, args.largest_scores + blockIdx.y);
  float lse = sum > 0 ? max + logf(sum) : -INFINITY, factor = sum > 0 ? 1 / sum : 0.0f, keep = 0;
  if (args.add_to_queries) {
    if (sum == 0) return;
    const float before = args.Lse(query, group, head), mine = lse;
    __syncwarp();
    lse = fmaxf(before, mine) + log1pf(expf(-fabsf(before - mine)));
    keep = expf(before - lse);
    factor *= expf(mine - lse);
  }
  WriteRow<T>(args.out, query, group, head, args.value_dim, out, factor, keep);
  if (lane == 0) args.Lse(query, group, head) = lse;
}

// Also computes delta, for BackwardKey. The grid is that of Forward.
template <typename T, int kColumns>
__global__ void __launch_bounds__(kThreads) BackwardQuery(AttentionArgs args) {
  extern __shared__ __align__(16) float memory[];
  const SharedTiles shared(memory, args);
  const int lane = threadIdx.x % kWarp;
  const int64_t query = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  const int64_t group = blockIdx.y / args.group_heads, head = blockIdx.y % args.group_heads;
  const bool active = query < args.queries;
  const VisibleRange visible = active ? KeysSeenBy(args, query) : VisibleRange();
  const BlockVisibleRange block(visible, active);
  const HeadDropout dropout(args, blockIdx.y);
  const HeadBias bias(args, blockIdx.y);
  BiasSums bias_sums(args, bias, memory + SharedTiles::Floats(args));
  float lse = 0, delta = 0;
  if (active) {
    LoadRow(args.q.Row<const T>(query, group, head), args.head_dim, shared.own_first);
    LoadRow(args.dout.Row<const T>(query, group, head), args.value_dim, shared.own_second);
    lse = args.Lse(query, group, head);
    const T* const out = args.out.Row<const T>(query, group, head);
    for (int d = lane; d < args.value_dim; d += kWarp)
      delta = fmaf(ToFloat(out[d]), shared.own_second[d], delta);
    delta = WarpSum(delta);
    if (lane == 0) args.Delta(query, group, head) = delta;
  }

  float dq[kColumns] = {};
  for (int64_t begin = block.begin; begin < block.end; begin += kTile) {
    __syncthreads();
    LoadTile<T>(args.k, group, 0, begin, block.end, args.head_dim, shared.pitch, shared.first);
    LoadTile<T>(args.v, group, 0, begin, block.end, args.value_dim, shared.second_pitch,
                shared.second);
    __syncthreads();
    const int64_t key = begin + lane;
    float ds = 0;
    int entry = 0;
    if (active && key >= visible.begin && key < visible.end) {
      const float* const k = shared.first + lane * shared.pitch;
      const float* const v = shared.second + lane * shared.second_pitch;
      const float score = Capped(args, args.scale * Dot(shared.own_first, k, args.head_dim)) +
                          bias.At(query, key, visible.shift);
      const float p = expf(score - lse);
      const float dp =
          dropout.Factor(query, key, visible.first_key) * Dot(shared.own_second, v, args.value_dim);
      ds = p * (dp - delta) * CapSlope(args, score);
      entry = bias.Entry(query, key, visible.shift);
    }
    bias_sums.Add(entry, ds);
    AddWeightedRows(ds, shared.first, shared.pitch, args.head_dim, dq);
  }
  bias_sums.Finish();
  if (!active) return;
  WriteRow<T>(args.dq, query, group, head, args.head_dim, dq, args.scale, args.add_to_queries);
}

// Grid: x counts tiles of kWarps keys, y counts groups. The heads of the group are processed one
// after another.
template <typename T, int kColumns>
__global__ void __launch_bounds__(kThreads) BackwardKey(AttentionArgs args) {
  extern __shared__ __align__(16) float memory[];
  const SharedTiles shared(memory, args);
  const int lane = threadIdx.x % kWarp;
  const int64_t key = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  const int64_t group = blockIdx.y;
  const bool active = key < args.keys;
  const VisibleRange visible = active ? QueriesThatSee(args, key) : VisibleRange();
  const BlockVisibleRange block(visible, active);
  if (active) {
    LoadRow(args.k.Row<const T>(key, group, 0), args.head_dim, shared.own_first);
    LoadRow(args.v.Row<const T>(key, group, 0), args.value_dim, shared.own_second);
  }

  float dk[kColumns] = {}, dv[kColumns] = {};
  for (int64_t head = 0; head < args.group_heads; ++head) {
    const HeadDropout dropout(args, group * args.group_heads + head);
    const HeadBias bias(args, group * args.group_heads + head);
    for (int64_t begin = block.begin; begin < block.end; begin += kTile) {
      __syncthreads();
      LoadTile<T>(args.q, group, head, begin, block.end, args.head_dim, shared.pitch, shared.first);
      LoadTile<T>(args.dout, group, head, begin, block.end, args.value_dim, shared.second_pitch,
                  shared.second);
      __syncthreads();
      const int64_t query = begin + lane;
      float kept = 0, ds = 0;
      if (active && query >= visible.begin && query < visible.end) {
        const float* const q = shared.first + lane * shared.pitch;
        const float* const dout = shared.second + lane * shared.second_pitch;
        const float score = Capped(args, args.scale * Dot(shared.own_first, q, args.head_dim)) +
                            bias.At(query, key, visible.shift);
        const float p = expf(score - args.Lse(query, group, head));
        const float factor = dropout.Factor(query, key, visible.first_key);
        kept = p * factor;
        ds = p * CapSlope(args, score) *
             (factor * Dot(shared.own_second, dout, args.value_dim) -
              args.Delta(query, group, head));
      }
      AddWeightedRows(kept, shared.second, shared.second_pitch, args.value_dim, dv);
      AddWeightedRows(ds, shared.first, shared.pitch, args.head_dim, dk);
    }
  }
  if (!active) return;
  WriteRow<T>(args.dk, key, group, 0, args.head_dim, dk, args.scale, args.add_to_keys);
  WriteRow<T>(args.dv, key, group, 0, args.value_dim, dv, 1.0f, args.add_to_keys);
}

AttentionArgs ArgsOf(const Attention& attention, const AttentionInputs& in, const Tensor& out_TGRE,
                     const Tensor& lse_TGR) {
  const Tensor& q = in.q_TGRD;
  CHECK_LE(std::max(q.dim(3), in.v_UGE.dim(2)), kMaxHeadDim)
      << "the largest head of attention on CUDA";
  AttentionArgs args;
  args.queries = q.dim(0);
  args.keys = in.k_UGD.dim(0);
  args.groups = q.dim(1);
  args.group_heads = q.dim(2);
  args.head_dim = static_cast<int>(q.dim(3));
  args.value_dim = static_cast<int>(in.v_UGE.dim(2));
  args.scale = attention.scale;
  args.softcap = attention.softcap;
  args.causal = attention.causal;
  args.window_size = attention.window_size;
  args.cu_seqlens_q = attention.cu_seqlens_q.data<int32_t>();
  args.cu_seqlens_k = attention.cu_seqlens_k.data<int32_t>();
  args.sequences = attention.cu_seqlens_q.dim(0) - 1;
  args.q = OperandOf(q);
  args.k = OperandOf(in.k_UGD);
  args.v = OperandOf(in.v_UGE);
  args.out = OperandOf(out_TGRE);
  args.lse = {lse_TGR.raw(), true, lse_TGR.stride(0), lse_TGR.stride(1), lse_TGR.stride(2)};
  args.add_to_queries = attention.add_to_queries;
  args.add_to_keys = attention.add_to_keys;
  if (in.bias_WN) {
    args.bias = in.bias_WN.data<float>();
    args.bias_reach = static_cast<int>(in.bias_WN.dim(0) / 2);
  }
  if (attention.place_q_T) {
    args.place_q = attention.place_q_T.data<int32_t>();
    args.place_k = attention.place_k_U.data<int32_t>();
  }
  const Dropout& dropout = attention.dropout;
  if (attention.largest_scores_N)
    args.largest_scores = attention.largest_scores_N.data<float>() + dropout.first_column;
  if (dropout.probability == 0) return args;
  args.dropout_seed = dropout.key.lo | uint64_t{dropout.key.hi} << 32;
  args.dropout_threshold =
      static_cast<uint32_t>(std::floor(std::ldexp(double{dropout.probability}, 32)));
  args.dropout_scale = 1 / (1 - dropout.probability);
  args.first_head = dropout.first_column;
  args.sample_T = dropout.sample_T.data<int64_t>();
  args.position_T = dropout.position_T.data<int32_t>();
  return args;
}

bool HopperRuns(DType dtype, const AttentionArgs& args) {
  if (HopperTakes(dtype, args) && HopperAttentionIsAvailable()) return true;
  LOG_FIRST_N(WARNING, 1) << "attention's kernels for Hopper were asked for, but "
                          << (HopperAttentionIsAvailable()
                                  ? "do not take these operands"
                                  : "this device or this build is not for them")
                          << ": others are used";
  return false;
}

template <typename Kernel>
void Launch(Kernel kernel, const Stream& stream, const AttentionArgs& args, int64_t rows,
            int64_t heads) {
  if (rows == 0 || heads == 0) return;
  size_t bytes = SharedTiles::Bytes(args);
  if (args.bias_sums != nullptr) bytes += sizeof(float) * kWarps * (2 * args.bias_reach + 1);
  CHECK_EQ(AllowDynamicShared(kernel, bytes), cudaSuccess)
      << bytes << " bytes of shared memory for heads of " << args.head_dim << " and "
      << args.value_dim << " channels and a bias that reaches " << args.bias_reach << " positions";
  kernel<<<dim3(Blocks(rows, kWarps), static_cast<unsigned>(heads)), kThreads, bytes,
           Handle(stream)>>>(args);
  CheckLaunched("attention");
}

// Calls body with a constant number of columns per lane that covers both kinds of heads.
template <typename Body>
void WithColumns(const AttentionArgs& args, Body body) {
  const int head_dim = std::max(args.head_dim, args.value_dim);
  if (head_dim <= 1 * kWarp) return body(std::integral_constant<int, 1>());
  if (head_dim <= 2 * kWarp) return body(std::integral_constant<int, 2>());
  if (head_dim <= 4 * kWarp) return body(std::integral_constant<int, 4>());
  return body(std::integral_constant<int, kMaxHeadDim / kWarp>());
}

}  // namespace

bool OwnAttentionForward(AttentionKernel kernel, const Stream& stream, const Attention& attention,
                         const AttentionInputs& in, const Tensor& out_TGRE, const Tensor& lse_TGR) {
  const AttentionArgs args = ArgsOf(attention, in, out_TGRE, lse_TGR);
  const DType dtype = in.q_TGRD.dtype();
  if (kernel == AttentionKernel::kHopper) {
    if (!HopperRuns(dtype, args)) return false;
    HopperAttentionForward(stream, dtype, args);
    return true;
  }
  if (args.bias == nullptr && TensorCoresTake(dtype, args)) {
    TensorCoreAttentionForward(stream, dtype, args);
    return true;
  }
  WithType(dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    WithColumns(args, [&](auto columns) {
      Launch(Forward<T, columns.value>, stream, args, args.queries, args.groups * args.group_heads);
    });
  });
  return true;
}

bool OwnAttentionBackward(AttentionKernel kernel, const Stream& stream, const Attention& attention,
                          const AttentionInputs& in, const Tensor& out_TGRE, const Tensor& lse_TGR,
                          const Tensor& dout_TGRE, const AttentionInputs& gradients) {
  AttentionArgs args = ArgsOf(attention, in, out_TGRE, lse_TGR);
  args.dout = OperandOf(dout_TGRE);
  args.dq = OperandOf(gradients.q_TGRD);
  args.dk = OperandOf(gradients.k_UGD);
  args.dv = OperandOf(gradients.v_UGE);
  if (kernel == AttentionKernel::kHopper && !HopperRuns(in.q_TGRD.dtype(), args)) return false;
  const int64_t heads = args.groups * args.group_heads, width = 2 * args.bias_reach + 1;
  const int64_t query_blocks = Blocks(args.queries, kWarps);
  const int64_t bias_floats = args.bias != nullptr ? query_blocks * heads * width : 0;
  args.delta = static_cast<float*>(stream.cuda()->Workspace((lse_TGR.numel() + bias_floats) *
                                                            static_cast<int64_t>(sizeof(float))));
  if (bias_floats > 0) args.bias_sums = args.delta + lse_TGR.numel();
  WithType(in.q_TGRD.dtype(), [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    if (kernel == AttentionKernel::kHopper)
      return HopperAttentionBackward(stream, in.q_TGRD.dtype(), args);
    if (args.bias == nullptr && TensorCoresTake(in.q_TGRD.dtype(), args))
      return TensorCoreAttentionBackward(stream, in.q_TGRD.dtype(), args);
    WithColumns(args, [&](auto columns) {
      Launch(BackwardQuery<T, columns.value>, stream, args, args.queries, heads);
      Launch(BackwardKey<T, columns.value>, stream, args, args.keys, args.groups);
    });
  });
  if (bias_floats == 0) return true;
  AddBiasSums<<<Blocks(heads * width, kThreads), kThreads, 0, Handle(stream)>>>(
      args.bias_sums, query_blocks, heads, width, gradients.bias_WN.data<float>());
  CheckLaunched("attention's bias");
  return true;
}

}  // namespace megatron::ops::cuda
