// The gradients of the gated delta rule in chunks (gated_delta.cuh). They go the forward pass's way
// back: from outputs to u within all chunks, from chunk to chunk of a sequence, and then through
// all chunks' systems. The gradients of queries and keys are sums over the heads of a group, which
// one block adds up.
#include "megatron/ops/cuda/chunks.cuh"
#include "megatron/ops/cuda/column_sums.h"
#include "megatron/ops/cuda/device.cuh"
#include "megatron/ops/cuda/gated_delta.cuh"
#include "megatron/ops/cuda/kernel_table.h"
#include "megatron/ops/gated_delta.h"

namespace megatron::ops::cuda {
namespace {

// Writes what the gradients of u have from the outputs of their chunk.
template <typename T>
__global__ void __launch_bounds__(kThreads) WithinGradientsKernel(GatedDeltaArgs args) {
  __shared__ ProductParts parts;
  __shared__ DeltaTokens tokens;
  __shared__ TokenSquare within;
  ForEachInputs<T>(args, &tokens, [&](const DeltaInputs<T>& in) {
    const int count = in.chunk.count;
    FillWithin(in, args.key, &within, &parts);
    ForEachPart(args.value, [&](int first, int columns) {
      ChunkTile gradient;
      gradient.Add<kOther, kOther>(
          count, columns, count, [&](int j, int64_t i) { return within.at[i][j]; },
          [&](int64_t i, int e) { return in.Dout(i, first + e); }, &parts);
      gradient.ForEach(count, columns, [&](int j, int e, float sum) {
        in.template Row<float>(args.value_gradients, j)[first + e] = sum;
      });
    });
  });
}

// Goes with kChunk columns of the gradient of a head's state back through a sequence: completes the
// gradients of u, and writes those of the states at the beginnings of chunks.
template <typename T>
__global__ void __launch_bounds__(kThreads) CarryBackKernel(GatedDeltaArgs args) {
  __shared__ ProductParts parts;
  __shared__ DeltaTokens tokens;
  const CarriedColumns carried(args);
  const BlockHead& at = carried.at;
  const int first = carried.first, columns = carried.count;
  const int64_t begin = carried.begin, end = carried.end;
  if (end - begin <= kChunk) return;
  const int64_t stride = args.state_gradients.columns;
  for (int64_t c = (end - begin - 1) / kChunk; c >= 0; --c) {
    const TokenChunk chunk = ChunkAt(begin, end, begin + c * kChunk);
    const DeltaInputs<T> in = FillInputs<T>(args, chunk, at, &tokens);
    const float* const behind =
        chunk.last ? nullptr : args.state_gradients.Of(chunk.NextPlace(), at.head) + first;
    if (!chunk.last) {
      ChunkTile through;
      through.Add<kDepth, kOther>(
          chunk.count, columns, args.key,
          [&](int i, int64_t d) { return tokens.decays.to_end[i] * in.K(i, d); },
          [&](int64_t d, int e) { return behind[d * stride + e]; }, &parts);
      through.ForEach(chunk.count, columns, [&](int i, int e, float sum) {
        in.template Row<float>(args.value_gradients, i)[first + e] += sum;
      });
    }
    if (chunk.first) return;
    float* const gradient = args.state_gradients.Of(chunk.Place(), at.head) + first;
    ForEachPart(args.key, [&](int first_row, int rows) {
      ChunkTile sum;
      sum.Add<kOther, kOther>(
          rows, columns, chunk.count,
          [&](int d, int64_t i) { return tokens.decays.from_begin[i] * in.Q(i, first_row + d); },
          [&](int64_t i, int e) { return in.Dout(i, first + e); }, &parts);
      sum.Add<kOther, kOther>(
          rows, columns, chunk.count, [&](int d, int64_t i) { return -in.Key(i, first_row + d); },
          [&](int64_t i, int e) { return in.ValueGradient(i, first + e); }, &parts);
      sum.ForEach(rows, columns, [&](int d, int e, float value) {
        const int64_t element = (first_row + d) * stride + e;
        gradient[element] = chunk.last ? value : fmaf(tokens.decays.whole, behind[element], value);
      });
    });
  }
}

// Sums of each token's channels.
struct TokenSums {
  float of_values[kChunk];   // v times the gradient of the right side of the system
  float of_keys[kChunk];     // what is read at the key, times the same
  float of_queries[kChunk];  // what is read at the query, times the gradient of the output
  float of_update[kChunk];   // u times what is read from the gradient of the state at the key
  float of_beta[kChunk];     // parts of the system's matrix, without beta, times their gradients
  float log_decay[kChunk];   // the gradients of logarithms of decays
};

// out[i] += the sum over e of the i-th row of left (i, d) times matrix [key, value], times
// right(i, e).
template <typename Left, typename Right>
__device__ void AddReadSums(const GatedDeltaArgs& args, int count, Left left, const float* matrix,
                            Right right, float* out, ProductParts* parts) {
  ForEachPart(args.value, [&](int first, int columns) {
    ChunkTile read;
    read.Add<kDepth, kOther>(
        count, columns, args.key, left,
        [&](int64_t d, int e) { return matrix[d * args.states.columns + first + e]; }, parts);
    read.AddRowSums(
        count, columns, [&](int i, int e, float sum) { return sum * right(i, first + e); }, out);
  });
}

// Makes the gradients of the right sides of the systems of those of u; writes the gradients of v,
// of the raw betas and decays, and the sums of the place.
template <typename T>
__global__ void __launch_bounds__(kThreads) HeadGradientsKernel(GatedDeltaArgs args) {
  __shared__ ProductParts parts;
  __shared__ DeltaTokens tokens;
  __shared__ TokenSquare below;  // products of keys, and later of queries with keys, and decays
  __shared__ TokenSquare inverse;
  __shared__ TokenSums sums;
  __shared__ float partial[kWarps];
  TokenSquare& decaying = inverse;  // gradients of logarithms of decays from token to token
  const Decays& decays = tokens.decays;
  const BlockHead at = args.HeadAt(blockIdx.x);
  float of_bias = 0, of_a_log = 0;
  ForEachInputs<T>(args, &tokens, [&](const DeltaInputs<T>& in) {
    const TokenChunk& chunk = in.chunk;
    const int count = chunk.count, t = threadIdx.x;
    if (t < kChunk) {
      sums.of_values[t] = sums.of_keys[t] = sums.of_queries[t] = 0;
      sums.of_update[t] = sums.of_beta[t] = 0;
    }
    FillInverse(in, args.key, &below, &inverse, &parts);
    ForEachPart(args.value, [&](int first, int columns) {
      ChunkTile right;
      right.Add<kOther, kOther>(
          count, columns, count, [&](int j, int64_t i) { return inverse.at[i][j]; },
          [&](int64_t i, int e) { return in.ValueGradient(i, first + e); }, &parts);
      right.AddRowSums(
          count, columns, [&](int i, int e, float sum) { return sum * in.V(i, first + e); },
          sums.of_values);
      right.ForEach(count, columns, [&](int i, int e, float sum) {
        in.template Row<float>(args.value_gradients, i)[first + e] = sum;
        in.template Row<T>(args.dv, i)[first + e] = FromFloat<T>(tokens.beta[i] * sum);
      });
    });

    const auto right_side = [&](int i, int64_t e) { return in.ValueGradient(i, e); };
    const auto dout = [&](int i, int64_t e) { return in.Dout(i, e); };
    const auto written = [&](int64_t e, int j) { return in.Written(j, e); };
    const auto query = [&](int i, int64_t d) { return in.Q(i, d); };
    const auto key = [&](int i, int64_t d) { return in.K(i, d); };
    {
      ChunkTile gradients;  // the system's matrix's, with the other sign
      gradients.Add<kDepth, kDepth>(count, count, args.value, right_side, written, &parts);
      gradients.AddRowSums(
          count, count,
          [&](int i, int j, float sum) { return j < i ? -sum * below.at[i][j] : 0.0f; },
          sums.of_beta);
      gradients.ForEach(count, count, [&](int i, int j, float sum) {
        decaying.at[i][j] = j < i ? -sum * below.at[i][j] * tokens.beta[i] : 0.0f;
      });
    }
    {
      FillWithin(in, args.key, &below, &parts);
      ChunkTile gradients;  // those of `within`
      gradients.Add<kDepth, kDepth>(count, count, args.value, dout, written, &parts);
      gradients.ForEach(count, count, [&](int i, int j, float sum) {
        if (j < i) decaying.at[i][j] = fmaf(sum, below.at[i][j], decaying.at[i][j]);
      });
    }
    const float* const state = chunk.first ? nullptr : args.states.Of(chunk.Place(), at.head);
    const float* const dstate =
        chunk.last ? nullptr : args.state_gradients.Of(chunk.NextPlace(), at.head);
    if (!chunk.first) {
      AddReadSums(args, count, key, state, right_side, sums.of_keys, &parts);
      AddReadSums(args, count, query, state, dout, sums.of_queries, &parts);
    }
    if (!chunk.last) {
      AddReadSums(
          args, count, key, dstate, [&](int i, int64_t e) { return in.Written(i, e); },
          sums.of_update, &parts);
    }
    __syncthreads();

    // The gradient of the logarithm of the decay over the chunk.
    float whole = 0;
    if (!chunk.last) {
      for (int i = 0; i < count; ++i) whole = fmaf(decays.to_end[i], sums.of_update[i], whole);
      if (!chunk.first) {
        whole +=
            decays.whole * DotOfStates(args.states, args.key, args.value, dstate, state, partial);
      }
    }
    if (t < count) {
      // No decay lies between a token and itself.
      float log_decay = 0;
      for (int j = 0; j < t; ++j) log_decay += decaying.at[t][j];
      for (int i = t + 1; i < count; ++i) log_decay -= decaying.at[i][t];
      log_decay += decays.from_begin[t] * (sums.of_queries[t] - tokens.beta[t] * sums.of_keys[t]);
      sums.log_decay[t] = log_decay - decays.to_end[t] * sums.of_update[t];
    }
    __syncthreads();
    float draw = 0, drate = 0;
    if (t < count) {
      // The decay up to a token has the steps up to it.
      const float behind = whole + SumFrom(t, count, sums.log_decay);
      draw = -decays.rate * behind * Logistic(decays.raw[t]);
      drate = -decays.rate * decays.step[t] * behind;
      const float dbeta =
          sums.of_beta[t] + sums.of_values[t] - decays.from_begin[t] * sums.of_keys[t];
      *in.template Row<T>(args.draw, t) = FromFloat<T>(draw);
      *in.template Row<T>(args.dbeta, t) =
          FromFloat<T>(dbeta * tokens.beta[t] * (1 - tokens.beta[t]));
    }
    of_bias += BlockSum(draw, partial);
    of_a_log += BlockSum(drate, partial);
  });
  if (threadIdx.x > 0) return;
  const int64_t i = at.outer * args.states.heads + at.head;
  args.sums[i] = of_bias;
  args.sums[args.places * args.states.heads + i] = of_a_log;
}

// Writes the gradients of queries or keys from those of their unit vectors, times `scale`, which
// are in the group's rows of the scratch memory of keys. A warp has a token.
template <typename T, typename Unit>
__device__ void WriteUnnormalized(const GatedDeltaArgs& args, const TokenChunk& chunk,
                                  int64_t group, float scale, const float* scales, Unit unit,
                                  const TokenRows& out) {
  __syncthreads();
  const int lane = threadIdx.x % kWarp;
  for (int i = threadIdx.x / kWarp; i < chunk.count; i += kWarps) {
    const float* const gradient = args.keys.Row<const float>(chunk.begin + i, group, 0);
    float along = 0;
    for (int d = lane; d < args.key; d += kWarp) along = fmaf(gradient[d], unit(i, d), along);
    along = WarpSum(along) / scale;
    T* const row = out.Row<T>(chunk.begin + i, group, 0);
    for (int d = lane; d < args.key; d += kWarp) {
      const float of_unit = scale * gradient[d] - along * unit(i, d);
      row[d] = FromFloat<T>(scales[i] / scale * of_unit);
    }
  }
}

// Writes the gradients of q and k. It uses the scratch memory of keys.
template <typename T>
__global__ void __launch_bounds__(kThreads) GroupGradientsKernel(GatedDeltaArgs args) {
  __shared__ ProductParts parts;
  __shared__ DeltaTokens tokens;
  __shared__ TokenSquare of_keys;     // the gradients of products of keys with keys
  __shared__ TokenSquare of_queries;  // and of queries with keys
  const Decays& decays = tokens.decays;
  const int64_t place = blockIdx.x / args.groups, group = blockIdx.x % args.groups;
  const int64_t stride = args.states.columns;
  ForEachChunk(args.sequences, place, [&](const TokenChunk& chunk) {
    const int count = chunk.count;
    // Calls body(inputs) for the heads of the group.
    const auto for_each_head = [&](auto body) {
      for (int64_t r = 0; r < args.group_heads; ++r) {
        body(FillInputs<T>(args, chunk, args.HeadAt(group * args.group_heads + r), &tokens));
      }
    };
    const auto write = [&](const ChunkTile& tile, int first, int columns) {
      tile.ForEach(count, columns, [&](int i, int d, float sum) {
        args.keys.Row<float>(chunk.begin + i, group, 0)[first + d] = sum;
      });
    };
    ChunkTile with_keys, with_queries;
    for_each_head([&](const DeltaInputs<T>& in) {
      const auto written = [&](int64_t e, int j) { return in.Written(j, e); };
      ChunkTile gradients, of_within;
      gradients.Add<kDepth, kDepth>(
          count, count, args.value, [&](int i, int64_t e) { return in.ValueGradient(i, e); },
          written, &parts);
      of_within.Add<kDepth, kDepth>(
          count, count, args.value, [&](int i, int64_t e) { return in.Dout(i, e); }, written,
          &parts);
      with_keys.AddTimes(gradients, [&](int i, int j) {
        return j < i ? -decays.Between(i, j) * tokens.beta[i] : 0.0f;
      });
      with_queries.AddTimes(of_within, [&](int i, int j) { return decays.Between(i, j); });
    });
    __syncthreads();  // the previous chunk's have been read
    with_keys.ForEach(count, count, [&](int i, int j, float sum) { of_keys.at[i][j] = sum; });
    with_queries.ForEach(count, count, [&](int i, int j, float sum) { of_queries.at[i][j] = sum; });

    // The scales of the group's queries and keys are the same for each head.
    const DeltaInputs<T> shared{args, chunk, tokens, args.HeadAt(group * args.group_heads)};
    const auto query = [&](int i, int64_t d) { return shared.Q(i, d); };
    const auto key = [&](int i, int64_t d) { return shared.K(i, d); };
    ForEachPart(args.key, [&](int first, int columns) {
      const auto keys = [&](int64_t j, int d) { return shared.K(j, first + d); };
      ChunkTile dq;
      dq.Add<kDepth, kOther>(
          count, columns, count, [&](int i, int64_t j) { return of_queries.at[i][j]; }, keys,
          &parts);
      if (!chunk.first) {
        for_each_head([&](const DeltaInputs<T>& in) {
          const float* const state = args.states.Of(chunk.Place(), in.at.head) + first * stride;
          dq.Add<kDepth, kDepth>(
              count, columns, args.value,
              [&](int i, int64_t e) { return decays.from_begin[i] * in.Dout(i, e); },
              [&](int64_t e, int d) { return state[d * stride + e]; }, &parts);
        });
      }
      write(dq, first, columns);
    });
    WriteUnnormalized<T>(args, chunk, group, ScoreScale(args.key), tokens.q_scale, query, args.dq);
    __syncthreads();  // the gradients of queries have been read
    ForEachPart(args.key, [&](int first, int columns) {
      const auto keys = [&](int64_t j, int d) { return shared.K(j, first + d); };
      ChunkTile dk;
      dk.Add<kDepth, kOther>(
          count, columns, count, [&](int i, int64_t j) { return of_keys.at[i][j]; }, keys, &parts);
      dk.Add<kOther, kOther>(
          count, columns, count, [&](int j, int64_t i) { return of_keys.at[i][j]; }, keys, &parts);
      dk.Add<kOther, kOther>(
          count, columns, count, [&](int j, int64_t i) { return of_queries.at[i][j]; },
          [&](int64_t i, int d) { return shared.Q(i, first + d); }, &parts);
      for_each_head([&](const DeltaInputs<T>& in) {
        if (!chunk.first) {
          const float* const state = args.states.Of(chunk.Place(), in.at.head) + first * stride;
          dk.Add<kDepth, kDepth>(
              count, columns, args.value,
              [&](int i, int64_t e) {
                return -tokens.beta[i] * decays.from_begin[i] * in.ValueGradient(i, e);
              },
              [&](int64_t e, int d) { return state[d * stride + e]; }, &parts);
        }
        if (!chunk.last) {
          const float* const dstate =
              args.state_gradients.Of(chunk.NextPlace(), in.at.head) + first * stride;
          dk.Add<kDepth, kDepth>(
              count, columns, args.value,
              [&](int i, int64_t e) { return decays.to_end[i] * in.Written(i, e); },
              [&](int64_t e, int d) { return dstate[d * stride + e]; }, &parts);
        }
      });
      write(dk, first, columns);
    });
    WriteUnnormalized<T>(args, chunk, group, 1.0f, tokens.k_scale, key, args.dk);
  });
}

}  // namespace

void GatedDeltaBackward(const Stream& stream, const Tensor& cu_seqlens, const GatedDeltaInputs& in,
                        const Tensor& dout_TGRE, const GatedDeltaScratch& scratch,
                        const GatedDeltaInputs& gradients) {
  if (in.v_TGRE.numel() == 0) return;
  const DType dtype = in.v_TGRE.dtype();
  GatedDeltaArgs args = ArgsOf(cu_seqlens, in, scratch);
  args.state_gradients = StatesOf(scratch.state_gradients);
  args.dout = RowsOf(dout_TGRE);
  args.dq = RowsOf(gradients.q_TGK);
  args.dk = RowsOf(gradients.k_TGK);
  args.dv = RowsOf(gradients.v_TGRE);
  args.dbeta = NumbersOf(gradients.beta_TGR);
  args.draw = NumbersOf(gradients.decay_TGR);
  args.sums = static_cast<float*>(scratch.token_sums.raw());
  FindDeltaStates(stream, dtype, args);
  WithType(dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const unsigned chunks = Blocks(args.places * args.heads(), 1);
    WithinGradientsKernel<T><<<chunks, kThreads, 0, Handle(stream)>>>(args);
    CheckLaunched("gradients within chunks");
    CarryBackKernel<T><<<CarryingBlocks(args), kThreads, 0, Handle(stream)>>>(args);
    CheckLaunched("gradients of delta rules' states");
    HeadGradientsKernel<T><<<chunks, kThreads, 0, Handle(stream)>>>(args);
    CheckLaunched("gradients of delta rules' heads");
    GroupGradientsKernel<T>
        <<<Blocks(args.places * args.groups, 1), kThreads, 0, Handle(stream)>>>(args);
    CheckLaunched("gradients of delta rules' groups");
  });
  AddSlices(
      args.sums, args.places, args.heads(),
      {static_cast<float*>(gradients.bias_H.raw()), static_cast<float*>(gradients.a_log_H.raw())},
      Handle(stream));
}

MEGATRON_CUDA_KERNEL(GatedDeltaBackward);

}  // namespace megatron::ops::cuda
