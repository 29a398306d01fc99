// Parts that the kernels of recurrences share: chunks of the tokens of packed sequences, the decay
// of states over a chunk, and products of matrices by a block.
//
// A block has kThreads threads, all of which call each function here.
#ifndef MEGATRON_OPS_CUDA_CHUNKS_CUH_
#define MEGATRON_OPS_CUDA_CHUNKS_CUH_

#include <cstdint>

#include "megatron/ops/cuda/device.cuh"
#include "megatron/ops/cuda/token_rows.cuh"

namespace megatron::ops::cuda {

constexpr int kChunk = 64;  // tokens of a chunk; the last of a sequence may be smaller

inline int64_t ChunkPlaces(int64_t tokens) { return (tokens + kChunk - 1) / kChunk; }

struct TokenChunk {
  int64_t begin;  // its first row of the batch
  int count;
  bool first, last;  // whether it is its sequence's first, its last chunk

  // A chunk that is not the first of its sequence has a place among the states at the beginnings of
  // chunks: that of the kChunk rows of the batch in which it begins, where no other such chunk
  // does.
  __device__ int64_t Place() const { return begin / kChunk; }
  __device__ int64_t NextPlace() const { return begin / kChunk + 1; }
};

__device__ inline TokenChunk ChunkAt(int64_t begin, int64_t end, int64_t at) {
  TokenChunk chunk;
  chunk.begin = at;
  chunk.count = static_cast<int>(min(end - at, int64_t{kChunk}));
  chunk.first = at == begin;
  chunk.last = at + chunk.count == end;
  return chunk;
}

struct Sequences {
  const int32_t* begins;  // [count + 1]
  int64_t count;

  // Returns the first sequence that ends behind the token.
  __device__ int64_t Of(int64_t token) const {
    int64_t low = 0, high = count;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (begins[middle + 1] > token) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low;
  }
};

inline Sequences SequencesOf(const Tensor& cu_seqlens) {
  return {static_cast<const int32_t*>(cu_seqlens.raw()), cu_seqlens.numel() - 1};
}

// Calls body(chunk) for each chunk that begins in the kChunk rows of a place, in their order.
template <typename Body>
__device__ void ForEachChunk(const Sequences& sequences, int64_t place, Body body) {
  const int64_t from = place * kChunk, to = from + kChunk;
  for (int64_t s = sequences.Of(from); s < sequences.count && sequences.begins[s] < to; ++s) {
    const int64_t begin = sequences.begins[s], end = sequences.begins[s + 1];
    const int64_t before = begin < from ? (from - begin + kChunk - 1) / kChunk : 0;
    const int64_t at = begin + before * kChunk;
    if (at < end && at < to) body(ChunkAt(begin, end, at));
  }
}

// The head that a block works for, and a chunk's place or a sequence.
struct BlockHead {
  int64_t outer, head, group, of_group;

  __device__ BlockHead(int64_t index, int64_t groups, int64_t group_heads)
      : outer(index / (groups * group_heads)),
        head(index % (groups * group_heads)),
        group(head / group_heads),
        of_group(head % group_heads) {}
};

// fp32 matrices of each place and head, of which rows and columns may be padded.
struct ChunkStates {
  float* data = nullptr;
  int64_t heads = 0, rows = 0, columns = 0;

  __device__ float* Of(int64_t place, int64_t head) const {
    return data + (place * heads + head) * rows * columns;
  }
};

inline ChunkStates StatesOf(const Tensor& states) {
  return {static_cast<float*>(states.raw()), states.dim(1), states.dim(2), states.dim(3)};
}

// What the decay of each head's state is made of: exp(-softplus(raw + bias) exp(a_log)).
struct DecayOperands {
  TokenRows raw;
  const void *bias = nullptr, *a_log = nullptr;  // one entry a head
};

// The decay of a head's state over a chunk. Behind the last token steps are 0.
struct Decays {
  float raw[kChunk];   // with the bias
  float step[kChunk];  // softplus of it
  // The logarithm of the decay from the chunk's beginning, the token's own step included.
  float log_decay[kChunk];
  float from_begin[kChunk];  // the same decay
  float to_end[kChunk];      // the decay behind the token
  float rate;                // exp(a_log)
  float whole;               // the decay over the chunk

  // Returns the decay from behind the j-th token to the i-th; 0 for tokens behind the i-th.
  __device__ float Between(int i, int j) const {
    return j <= i ? expf(log_decay[i] - log_decay[j]) : 0.0f;
  }
};

__device__ inline float Softplus(float x) { return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))); }
__device__ inline float Logistic(float x) { return 1.0f / (1.0f + expf(-x)); }

template <typename T>
__device__ void FillDecays(const DecayOperands& in, const TokenChunk& chunk, const BlockHead& at,
                           Decays* decays) {
  __syncthreads();  // the previous contents have been read
  const int i = threadIdx.x;
  if (i < kChunk) {
    float raw = 0;
    if (i < chunk.count) {
      raw = ToFloat(*in.raw.Row<const T>(chunk.begin + i, at.group, at.of_group)) +
            ToFloat(static_cast<const T*>(in.bias)[at.head]);
    }
    decays->raw[i] = raw;
    decays->step[i] = i < chunk.count ? Softplus(raw) : 0.0f;
  }
  if (i == 0) decays->rate = expf(ToFloat(static_cast<const T*>(in.a_log)[at.head]));
  __syncthreads();
  if (i < kChunk) {
    float sum = 0, log_decay = 0;
    for (int j = 0; j < kChunk; ++j) {
      sum -= decays->step[j] * decays->rate;
      if (j == i) log_decay = sum;
    }
    decays->log_decay[i] = log_decay;
    decays->from_begin[i] = expf(log_decay);
    decays->to_end[i] = expf(sum - log_decay);
    if (i == kChunk - 1) decays->whole = expf(sum);
  }
  __syncthreads();
}

// A matrix of pairs of a chunk's tokens in shared memory, padded against bank conflicts.
struct TokenSquare {
  float at[kChunk][kChunk + 1];
};

// Which index of an operand goes along contiguous memory: that of the summed dim, or the other.
enum class Contiguous { kDepth, kOther };
constexpr auto kDepth = Contiguous::kDepth, kOther = Contiguous::kOther;

// Parts of both operands of a product in shared memory.
constexpr int kProductDepth = 16;
struct ProductParts {
  alignas(16) float a[kProductDepth][kChunk + 4];
  alignas(16) float b[kProductDepth][kChunk + 4];
};

// A sum of products of matrices with at most kChunk rows and columns. The threads form a grid of
// kGrid x kGrid, and each has kSide x kSide elements.
class ChunkTile {
 public:
  // Adds the product of a [rows, depth] and b [depth, columns], which a(row, d) and b(d, column)
  // return. What the block has written to memory before the call can be read by them.
  template <Contiguous kA, Contiguous kB, typename A, typename B>
  __device__ void Add(int rows, int columns, int64_t depth, A a, B b, ProductParts* parts) {
    for (int64_t first = 0; first < depth; first += kProductDepth) {
      const int count = static_cast<int>(min(depth - first, int64_t{kProductDepth}));
      __syncthreads();  // the previous parts have been read
      for (int e = threadIdx.x; e < kProductDepth * kChunk; e += kThreads) {
        const int d = kA == Contiguous::kDepth ? e % kProductDepth : e / kChunk;
        const int i = kA == Contiguous::kDepth ? e / kProductDepth : e % kChunk;
        parts->a[d][i] = i < rows && d < count ? a(i, first + d) : 0.0f;
      }
      for (int e = threadIdx.x; e < kProductDepth * kChunk; e += kThreads) {
        const int d = kB == Contiguous::kDepth ? e % kProductDepth : e / kChunk;
        const int j = kB == Contiguous::kDepth ? e / kProductDepth : e % kChunk;
        parts->b[d][j] = j < columns && d < count ? b(first + d, j) : 0.0f;
      }
      __syncthreads();
      if (Row() >= rows || Column() >= columns) continue;
#pragma unroll
      for (int d = 0; d < kProductDepth; ++d) {
        const auto left = Load<float, kSide>(parts->a[d], Row() / kSide);
        const auto right = Load<float, kSide>(parts->b[d], Column() / kSide);
#pragma unroll
        for (int r = 0; r < kSide; ++r) {
#pragma unroll
          for (int c = 0; c < kSide; ++c)
            sums_[r][c] = fmaf(left.values[r], right.values[c], sums_[r][c]);
        }
      }
    }
  }

  // Adds another tile, times factor(row, column).
  template <typename Factor>
  __device__ void AddTimes(const ChunkTile& other, Factor factor) {
#pragma unroll
    for (int r = 0; r < kSide; ++r) {
#pragma unroll
      for (int c = 0; c < kSide; ++c)
        sums_[r][c] = fmaf(factor(Row() + r, Column() + c), other.sums_[r][c], sums_[r][c]);
    }
  }

  // Calls body(row, column, sum) for the thread's elements, which are the same for every tile.
  template <typename Body>
  __device__ void ForEach(int rows, int columns, Body body) const {
#pragma unroll
    for (int r = 0; r < kSide; ++r) {
#pragma unroll
      for (int c = 0; c < kSide; ++c) {
        if (Row() + r < rows && Column() + c < columns) body(Row() + r, Column() + c, sums_[r][c]);
      }
    }
  }

  // out[row] += the sum over columns of value(row, column, sum). `out` is shared memory; each of
  // its entries is one thread's.
  template <typename Value>
  __device__ void AddRowSums(int rows, int columns, Value value, float* out) const {
    for (int r = 0; r < kSide; ++r) {
      const int row = Row() + r;
      float sum = 0;
      for (int c = 0; c < kSide; ++c) {
        if (row < rows && Column() + c < columns) sum += value(row, Column() + c, sums_[r][c]);
      }
      for (int lanes = kGrid / 2; lanes > 0; lanes /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, lanes);
      if (threadIdx.x % kGrid == 0 && row < rows) out[row] += sum;
    }
  }

 private:
  static constexpr int kGrid = 16, kSide = kChunk / kGrid;
  static_assert(kGrid * kGrid == kThreads);

  __device__ static int Row() { return threadIdx.x / kGrid * kSide; }
  __device__ static int Column() { return threadIdx.x % kGrid * kSide; }

  float sums_[kSide][kSide] = {};
};

// Calls body(first, count) for parts of at most kChunk of a width.
template <typename Body>
__device__ void ForEachPart(int width, Body body) {
  for (int first = 0; first < width; first += kChunk) body(first, min(kChunk, width - first));
}

// Returns the sum of products of the elements of two matrices with the same layout, to every
// thread. `partial` is shared memory of kWarps.
__device__ inline float DotOfStates(const ChunkStates& layout, int rows, int columns,
                                    const float* a, const float* b, float* partial) {
  float sum = 0;
  for (int e = threadIdx.x; e < rows * columns; e += kThreads) {
    const int64_t at = e / columns * layout.columns + e % columns;
    sum = fmaf(a[at], b[at], sum);
  }
  return BlockSum(sum, partial);
}

// Returns the sum of `values` over the tokens from the i-th to the last of `count`.
__device__ inline float SumFrom(int i, int count, const float* values) {
  float sum = 0;
  for (int j = count - 1; j >= i; --j) sum += values[j];
  return sum;
}

}  // namespace megatron::ops::cuda

#endif  // MEGATRON_OPS_CUDA_CHUNKS_CUH_
