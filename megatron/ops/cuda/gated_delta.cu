// The gated delta rule in chunks (gated_delta.cuh), in fp32 arithmetic. The systems of all chunks
// are solved at once. Then a block has some columns of a head's state, and goes with them from
// chunk to chunk of a sequence. The outputs are those of all chunks at once again.
#include "megatron/ops/cuda/chunks.cuh"
#include "megatron/ops/cuda/device.cuh"
#include "megatron/ops/cuda/gated_delta.cuh"
#include "megatron/ops/cuda/kernel_table.h"
#include "megatron/ops/gated_delta.h"

namespace megatron::ops::cuda {
namespace {

// Writes keys and values, the latter for an empty state in front of the chunk.
template <typename T>
__global__ void __launch_bounds__(kThreads) SolveKernel(GatedDeltaArgs args) {
  __shared__ ProductParts parts;
  __shared__ DeltaTokens tokens;
  __shared__ TokenSquare below;
  __shared__ TokenSquare inverse;
  ForEachInputs<T>(args, &tokens, [&](const DeltaInputs<T>& in) {
    const int count = in.chunk.count;
    FillInverse(in, args.key, &below, &inverse, &parts);
    const auto inverse_at = [&](int i, int64_t j) { return inverse.at[i][j]; };
    if (!in.chunk.first) {
      ForEachPart(args.key, [&](int first, int columns) {
        ChunkTile keys;
        keys.Add<kDepth, kOther>(
            count, columns, count, inverse_at,
            [&](int64_t j, int d) {
              return tokens.beta[j] * tokens.decays.from_begin[j] * in.K(j, first + d);
            },
            &parts);
        keys.ForEach(count, columns, [&](int i, int d, float sum) {
          in.template Row<float>(args.keys, i)[first + d] = sum;
        });
      });
    }
    ForEachPart(args.value, [&](int first, int columns) {
      ChunkTile values;
      values.Add<kDepth, kOther>(
          count, columns, count, inverse_at,
          [&](int64_t j, int e) { return tokens.beta[j] * in.V(j, first + e); }, &parts);
      values.ForEach(count, columns, [&](int i, int e, float sum) {
        in.template Row<float>(args.values, i)[first + e] = sum;
      });
    });
  });
}

// Goes with kChunk columns of a head's state through a sequence: makes u of `values`, and writes
// the states at the beginnings of chunks.
template <typename T>
__global__ void __launch_bounds__(kThreads) CarryKernel(GatedDeltaArgs args) {
  __shared__ ProductParts parts;
  __shared__ DeltaTokens tokens;
  const CarriedColumns carried(args);
  const BlockHead& at = carried.at;
  const int first = carried.first, columns = carried.count;
  const int64_t begin = carried.begin, end = carried.end;
  if (end - begin <= kChunk) return;
  const int64_t stride = args.states.columns;
  for (int64_t row = begin; row < end; row += kChunk) {
    const TokenChunk chunk = ChunkAt(begin, end, row);
    const DeltaInputs<T> in = FillInputs<T>(args, chunk, at, &tokens);
    const float* const state =
        chunk.first ? nullptr : args.states.Of(chunk.Place(), at.head) + first;
    if (!chunk.first) {
      ChunkTile read;
      read.Add<kDepth, kOther>(
          chunk.count, columns, args.key, [&](int i, int64_t d) { return in.Key(i, d); },
          [&](int64_t d, int e) { return state[d * stride + e]; }, &parts);
      read.ForEach(chunk.count, columns, [&](int i, int e, float sum) {
        in.template Row<float>(args.values, i)[first + e] -= sum;
      });
    }
    if (chunk.last) return;
    float* const next = args.states.Of(chunk.NextPlace(), at.head) + first;
    ForEachPart(args.key, [&](int first_row, int rows) {
      ChunkTile sum;
      sum.Add<kOther, kOther>(
          rows, columns, chunk.count,
          [&](int d, int64_t i) { return tokens.decays.to_end[i] * in.K(i, first_row + d); },
          [&](int64_t i, int e) { return in.Written(i, first + e); }, &parts);
      sum.ForEach(rows, columns, [&](int d, int e, float value) {
        const int64_t element = (first_row + d) * stride + e;
        next[element] = chunk.first ? value : fmaf(tokens.decays.whole, state[element], value);
      });
    });
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads) OutputsKernel(GatedDeltaArgs args) {
  __shared__ ProductParts parts;
  __shared__ DeltaTokens tokens;
  __shared__ TokenSquare within;
  ForEachInputs<T>(args, &tokens, [&](const DeltaInputs<T>& in) {
    const int count = in.chunk.count;
    FillWithin(in, args.key, &within, &parts);
    ForEachPart(args.value, [&](int first, int columns) {
      ChunkTile out;
      out.Add<kDepth, kOther>(
          count, columns, count, [&](int i, int64_t j) { return within.at[i][j]; },
          [&](int64_t j, int e) { return in.Written(j, first + e); }, &parts);
      if (!in.chunk.first) {
        const float* const state = args.states.Of(in.chunk.Place(), in.at.head) + first;
        out.Add<kDepth, kOther>(
            count, columns, args.key,
            [&](int i, int64_t d) { return tokens.decays.from_begin[i] * in.Q(i, d); },
            [&](int64_t d, int e) { return state[d * args.states.columns + e]; }, &parts);
      }
      out.ForEach(count, columns, [&](int i, int e, float sum) {
        in.template Row<T>(args.out, i)[first + e] = FromFloat<T>(sum);
      });
    });
  });
}

// The rows of a contiguous tensor [tokens, heads, width] by groups.
TokenRows RowsOfHeads(const Tensor& x_THK, int64_t group_heads) {
  if (x_THK.empty()) return {};
  return {x_THK.raw(), x_THK.stride(0), group_heads * x_THK.stride(1), x_THK.stride(1)};
}

}  // namespace

GatedDeltaArgs ArgsOf(const Tensor& cu_seqlens, const GatedDeltaInputs& in,
                      const GatedDeltaScratch& scratch) {
  GatedDeltaArgs args;
  args.sequences = SequencesOf(cu_seqlens);
  args.places = ChunkPlaces(in.v_TGRE.dim(0));
  args.groups = in.v_TGRE.dim(1);
  args.group_heads = in.v_TGRE.dim(2);
  args.key = static_cast<int>(in.k_TGK.dim(2));
  args.value = static_cast<int>(in.v_TGRE.dim(3));
  args.q = RowsOf(in.q_TGK);
  args.k = RowsOf(in.k_TGK);
  args.v = RowsOf(in.v_TGRE);
  args.beta = NumbersOf(in.beta_TGR);
  args.decay = {NumbersOf(in.decay_TGR), in.bias_H.raw(), in.a_log_H.raw()};
  args.states = StatesOf(scratch.states);
  args.keys = RowsOfHeads(scratch.keys_THK, args.group_heads);
  args.values = RowsOfHeads(scratch.values_THE, args.group_heads);
  args.value_gradients = RowsOfHeads(scratch.value_gradients_THE, args.group_heads);
  return args;
}

void FindDeltaStates(const Stream& stream, DType dtype, const GatedDeltaArgs& args) {
  WithType(dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    SolveKernel<T><<<Blocks(args.places * args.heads(), 1), kThreads, 0, Handle(stream)>>>(args);
    CheckLaunched("systems of delta rules");
    CarryKernel<T><<<CarryingBlocks(args), kThreads, 0, Handle(stream)>>>(args);
    CheckLaunched("states of delta rules");
  });
}

void GatedDeltaForward(const Stream& stream, const Tensor& cu_seqlens, const GatedDeltaInputs& in,
                       const GatedDeltaScratch& scratch, const Tensor& out_TGRE) {
  if (in.v_TGRE.numel() == 0) return;
  GatedDeltaArgs args = ArgsOf(cu_seqlens, in, scratch);
  args.out = RowsOf(out_TGRE);
  FindDeltaStates(stream, in.v_TGRE.dtype(), args);
  WithType(in.v_TGRE.dtype(), [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    OutputsKernel<T><<<Blocks(args.places * args.heads(), 1), kThreads, 0, Handle(stream)>>>(args);
  });
  CheckLaunched("outputs of delta rules");
}

MEGATRON_CUDA_KERNEL(GatedDeltaForward);

}  // namespace megatron::ops::cuda
