// Parts that the kernels of gated_delta.cu and gated_delta_backward.cu share.
//
// Within a chunk, with the decays D_ij from token j to token i and the state S in front of it, what
// the tokens write is u = (1 + A)^-1 (beta (v - D S^T k)) with A_ij = beta_i D_ij k_i k_j for j <
// i. The inverse is found for all chunks at once, and with it u = values - keys S, where
//
//   values = (1 + A)^-1 beta v,   keys = (1 + A)^-1 beta D k
//   out_i = D_i S^T q_i + sum over j <= i of P_ij u_j,   P_ij = D_ij q_i k_j
//   state behind the chunk = D S + sum over j of D_j k_j u_j^T
#ifndef MEGATRON_OPS_CUDA_GATED_DELTA_CUH_
#define MEGATRON_OPS_CUDA_GATED_DELTA_CUH_

#include <cstdint>

#include "megatron/ops/cuda/chunks.cuh"
#include "megatron/ops/cuda/device.cuh"
#include "megatron/ops/gated_delta.h"

namespace megatron::ops::cuda {

static_assert(kChunk == kGatedDeltaChunk);

struct GatedDeltaArgs {
  Sequences sequences;
  int64_t places = 0, groups = 1, group_heads = 1;
  int key = 1, value = 1;  // widths of a head
  TokenRows q, k, v, beta;
  DecayOperands decay;
  ChunkStates states;
  TokenRows keys, values;  // fp32; `values` becomes u
  TokenRows out;           // forward
  // Backward; draw is the gradient of decay.raw.
  TokenRows dout, dq, dk, dv, dbeta, draw;
  ChunkStates state_gradients;
  // fp32: the gradients of u, and of the right side of the system behind HeadGradientsKernel.
  TokenRows value_gradients;
  float* sums = nullptr;  // [2, places, heads]: gradients of bias and a_log

  int64_t heads() const { return groups * group_heads; }
  // The parts of at most kChunk columns of a head's state.
  __host__ __device__ int state_parts() const { return (value + kChunk - 1) / kChunk; }
  __device__ BlockHead HeadAt(int64_t index) const { return {index, groups, group_heads}; }
};

// What is computed from one head's inputs at the tokens of a chunk, in shared memory. Queries and
// keys times their scales are unit vectors, and queries besides times the scale of scores.
struct DeltaTokens {
  Decays decays;
  float beta[kChunk];
  float q_scale[kChunk], k_scale[kChunk];
};

// Added to the sum of squares of a query or key, as in the published models.
constexpr float kNormEpsilon = 1e-6f;

// Fills scales[i] with `scale` over the norm of the i-th token's row; a warp has a row.
template <typename T>
__device__ void FillScales(const TokenRows& rows, const TokenChunk& chunk, int64_t group, int width,
                           float scale, float* scales) {
  for (int i = threadIdx.x / kWarp; i < chunk.count; i += kWarps) {
    const T* const row = rows.Row<const T>(chunk.begin + i, group, 0);
    float sum = 0;
    for (int d = threadIdx.x % kWarp; d < width; d += kWarp) {
      const float x = ToFloat(row[d]);
      sum = fmaf(x, x, sum);
    }
    sum = WarpSum(sum);
    if (threadIdx.x % kWarp == 0) scales[i] = scale / sqrtf(sum + kNormEpsilon);
  }
}

__device__ inline float ScoreScale(int key) { return 1.0f / sqrtf(static_cast<float>(key)); }

template <typename T>
__device__ void FillTokens(const GatedDeltaArgs& args, const TokenChunk& chunk, const BlockHead& at,
                           DeltaTokens* tokens) {
  __syncthreads();  // the previous contents have been read
  const int i = threadIdx.x;
  if (i < kChunk) {
    tokens->beta[i] =
        i < chunk.count
            ? Logistic(ToFloat(*args.beta.Row<const T>(chunk.begin + i, at.group, at.of_group)))
            : 0.0f;
    tokens->q_scale[i] = tokens->k_scale[i] = 0;
  }
  __syncthreads();
  FillScales<T>(args.q, chunk, at.group, args.key, ScoreScale(args.key), tokens->q_scale);
  FillScales<T>(args.k, chunk, at.group, args.key, 1, tokens->k_scale);
  FillDecays<T>(args.decay, chunk, at, &tokens->decays);
}

// The elements of the operands at the tokens of one head's part of a chunk.
template <typename T>
struct DeltaInputs {
  const GatedDeltaArgs& args;
  const TokenChunk& chunk;
  const DeltaTokens& tokens;
  const BlockHead at;

  __device__ float Q(int i, int64_t d) const {
    return tokens.q_scale[i] * ToFloat(args.q.Row<const T>(Token(i), at.group, 0)[d]);
  }
  __device__ float K(int i, int64_t d) const {
    return tokens.k_scale[i] * ToFloat(args.k.Row<const T>(Token(i), at.group, 0)[d]);
  }
  __device__ float V(int i, int64_t e) const { return Of<T>(args.v, i, e); }
  __device__ float Dout(int i, int64_t e) const { return Of<T>(args.dout, i, e); }
  // Elements of scratch memory.
  __device__ float Key(int i, int64_t d) const { return Of<float>(args.keys, i, d); }
  __device__ float Written(int i, int64_t e) const { return Of<float>(args.values, i, e); }
  __device__ float ValueGradient(int i, int64_t e) const {
    return Of<float>(args.value_gradients, i, e);
  }

  __device__ int64_t Token(int i) const { return chunk.begin + i; }
  template <typename U>
  __device__ U* Row(const TokenRows& rows, int i) const {
    return rows.Row<U>(Token(i), at.group, at.of_group);
  }

 private:
  template <typename U>
  __device__ float Of(const TokenRows& rows, int i, int64_t element) const {
    return ToFloat(Row<const U>(rows, i)[element]);
  }
};

// Fills `tokens`, and returns the inputs that it is a part of.
template <typename T>
__device__ DeltaInputs<T> FillInputs(const GatedDeltaArgs& args, const TokenChunk& chunk,
                                     const BlockHead& at, DeltaTokens* tokens) {
  FillTokens<T>(args, chunk, at, tokens);
  return {args, chunk, *tokens, at};
}

// Calls body(inputs) for the chunks of the place and the head that the block works for.
template <typename T, typename Body>
__device__ void ForEachInputs(const GatedDeltaArgs& args, DeltaTokens* tokens, Body body) {
  const BlockHead at = args.HeadAt(blockIdx.x);
  ForEachChunk(args.sequences, at.outer,
               [&](const TokenChunk& chunk) { body(FillInputs<T>(args, chunk, at, tokens)); });
}

// The columns of a head's state with which a block goes through a sequence.
struct CarriedColumns {
  BlockHead at;  // `outer` is the sequence
  int first, count;
  int64_t begin, end;  // the sequence's tokens

  __device__ explicit CarriedColumns(const GatedDeltaArgs& args)
      : at(args.HeadAt(blockIdx.x / args.state_parts())),
        first(blockIdx.x % args.state_parts() * kChunk),
        count(min(kChunk, args.value - first)),
        begin(args.sequences.begins[at.outer]),
        end(args.sequences.begins[at.outer + 1]) {}
};

// The number of blocks that have all columns of all heads in all sequences.
inline unsigned CarryingBlocks(const GatedDeltaArgs& args) {
  return Blocks(args.sequences.count * args.heads() * args.state_parts(), 1);
}

// Fills within(i, j) with P, the products of queries with keys up to them, times the decays.
template <typename T>
__device__ void FillWithin(const DeltaInputs<T>& in, int key, TokenSquare* within,
                           ProductParts* parts) {
  ChunkTile products;
  products.Add<kDepth, kDepth>(
      in.chunk.count, in.chunk.count, key, [&](int i, int64_t d) { return in.Q(i, d); },
      [&](int64_t d, int j) { return in.K(j, d); }, parts);
  products.ForEach(in.chunk.count, in.chunk.count, [&](int i, int j, float product) {
    within->at[i][j] = product * in.tokens.decays.Between(i, j);
  });
}

// Fills below(i, j) with the products of keys with those in front of them, times the decays, and
// `inverse` with that of 1 + beta_i below(i, j). Four lanes have a column of the inverse.
template <typename T>
__device__ void FillInverse(const DeltaInputs<T>& in, int key, TokenSquare* below,
                            TokenSquare* inverse, ProductParts* parts) {
  const int count = in.chunk.count;
  ChunkTile products;
  products.Add<kDepth, kDepth>(
      count, count, key, [&](int i, int64_t d) { return in.K(i, d); },
      [&](int64_t d, int j) { return in.K(j, d); }, parts);
  products.ForEach(count, count, [&](int i, int j, float product) {
    below->at[i][j] = j < i ? product * in.tokens.decays.Between(i, j) : 0.0f;
  });
  __syncthreads();
  static_assert(kThreads == 4 * kChunk);
  const int column = threadIdx.x / 4, lane = threadIdx.x % 4;
  for (int i = 0; i < count; ++i) {
    float sum = 0;
    for (int m = column + lane; m < i; m += 4)
      sum = fmaf(below->at[i][m], inverse->at[m][column], sum);
    for (int lanes = 2; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lanes);
    if (lane == 0) {
      inverse->at[i][column] = i > column ? -in.tokens.beta[i] * sum : (i == column ? 1.0f : 0.0f);
    }
    __syncwarp();
  }
}

// The arguments of both passes.
GatedDeltaArgs ArgsOf(const Tensor& cu_seqlens, const GatedDeltaInputs& in,
                      const GatedDeltaScratch& scratch);

// Finds keys, u and the states at the beginnings of chunks (gated_delta.cu).
void FindDeltaStates(const Stream& stream, DType dtype, const GatedDeltaArgs& args);

}  // namespace megatron::ops::cuda

#endif  // MEGATRON_OPS_CUDA_GATED_DELTA_CUH_
