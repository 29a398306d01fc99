// The chunked form of ops/state_space.h, in fp32 arithmetic.
//
// What each chunk adds to the state behind it is found for all chunks at once, and then, a thread
// for each element of a state, the states in front of the chunks. The gradients of states are found
// in the same way from the sequence's end. Then chunks are independent: a block has one head's part
// of a chunk, or for the gradients of B and C, which heads share, one group's. So no sum needs
// atomics, and each has one order.
#include "megatron/ops/cuda/chunks.cuh"
#include "megatron/ops/cuda/column_sums.h"
#include "megatron/ops/cuda/device.cuh"
#include "megatron/ops/cuda/kernel_table.h"
#include "megatron/ops/state_space.h"

namespace megatron::ops::cuda {
namespace {

static_assert(kChunk == kStateSpaceChunk);

struct StateSpaceArgs {
  Sequences sequences;
  int64_t places = 0, groups = 1, group_heads = 1;
  int channels = 1, state = 1;
  TokenRows x, b, c;
  DecayOperands decay;         // the raw steps, too
  const void* skip = nullptr;  // one entry a head
  ChunkStates states, state_gradients;
  // [places, heads]: the decays over the chunks in front of states, and behind gradients of states.
  float *decay_to_state = nullptr, *decay_of_gradient = nullptr;
  TokenRows y;                      // forward
  TokenRows dy, dx, db, dc, dstep;  // backward
  float* sums = nullptr;            // [3, places, heads]: gradients of step bias, a_log and skip

  int64_t heads() const { return groups * group_heads; }
};

// The elements of the operands at the tokens of one head's part of a chunk.
template <typename T>
struct ChunkInputs {
  const StateSpaceArgs& args;
  const TokenChunk& chunk;
  const int64_t group, of_group;

  __device__ float X(int i, int64_t p) const { return Element(args.x, i, of_group, p); }
  __device__ float B(int i, int64_t n) const { return Element(args.b, i, 0, n); }
  __device__ float C(int i, int64_t n) const { return Element(args.c, i, 0, n); }
  __device__ float Dy(int i, int64_t p) const { return Element(args.dy, i, of_group, p); }

 private:
  __device__ float Element(const TokenRows& rows, int i, int64_t head, int64_t at) const {
    return ToFloat(rows.Row<const T>(chunk.begin + i, group, head)[at]);
  }
};

// out [state, channels] = the sum over the chunk's tokens of the products of left(i, n) and
// right(i, p).
template <typename Left, typename Right>
__device__ void WriteOuterProducts(const StateSpaceArgs& args, int tokens, Left left, Right right,
                                   float* out, ProductParts* parts) {
  ForEachPart(args.state, [&](int first_n, int rows) {
    ForEachPart(args.channels, [&](int first_p, int columns) {
      ChunkTile sum;
      sum.Add<kOther, kOther>(
          rows, columns, tokens, [&](int n, int64_t i) { return left(i, first_n + n); },
          [&](int64_t i, int p) { return right(i, first_p + p); }, parts);
      sum.ForEach(rows, columns, [&](int n, int p, float value) {
        out[(first_n + n) * args.states.columns + first_p + p] = value;
      });
    });
  });
}

// Writes what each chunk adds to the state behind it to the place of the next chunk.
template <typename T>
__global__ void __launch_bounds__(kThreads) ChunkStatesKernel(StateSpaceArgs args) {
  __shared__ ProductParts parts;
  __shared__ Decays decays;
  const BlockHead at(blockIdx.x, args.groups, args.group_heads);
  ForEachChunk(args.sequences, at.outer, [&](const TokenChunk& chunk) {
    if (chunk.last) return;
    FillDecays<T>(args.decay, chunk, at, &decays);
    const int64_t next = chunk.NextPlace();
    if (threadIdx.x == 0) args.decay_to_state[next * args.states.heads + at.head] = decays.whole;
    const ChunkInputs<T> in{args, chunk, at.group, at.of_group};
    WriteOuterProducts(
        args, chunk.count,
        [&](int i, int n) { return decays.to_end[i] * decays.step[i] * in.B(i, n); },
        [&](int i, int p) { return in.X(i, p); }, args.states.Of(next, at.head), &parts);
  });
}

// Writes what each chunk's outputs add to the gradient of the state in front of it.
template <typename T>
__global__ void __launch_bounds__(kThreads) ChunkStateGradientsKernel(StateSpaceArgs args) {
  __shared__ ProductParts parts;
  __shared__ Decays decays;
  const BlockHead at(blockIdx.x, args.groups, args.group_heads);
  ForEachChunk(args.sequences, at.outer, [&](const TokenChunk& chunk) {
    if (chunk.first) return;
    FillDecays<T>(args.decay, chunk, at, &decays);
    const int64_t place = chunk.Place();
    if (threadIdx.x == 0)
      args.decay_of_gradient[place * args.states.heads + at.head] = decays.whole;
    const ChunkInputs<T> in{args, chunk, at.group, at.of_group};
    WriteOuterProducts(
        args, chunk.count, [&](int i, int n) { return decays.from_begin[i] * in.C(i, n); },
        [&](int i, int p) { return in.Dy(i, p); }, args.state_gradients.Of(place, at.head), &parts);
  });
}

// Adds up what the chunks of a sequence add to a state, from its beginning, or, kForward false, to
// the gradient of a state, from its end. `decays` says by how much the sum decays at each place.
// Each thread has one element of a head's state.
template <bool kForward>
__global__ void __launch_bounds__(kThreads)
    CarryKernel(Sequences sequences, ChunkStates states, const float* decays, int rows,
                int columns) {
  const int64_t blocks = (static_cast<int64_t>(rows) * columns + kThreads - 1) / kThreads;
  const int64_t element = blockIdx.x % blocks * kThreads + threadIdx.x;
  if (element >= static_cast<int64_t>(rows) * columns) return;
  const int64_t head = blockIdx.x / blocks % states.heads;
  const int64_t sequence = blockIdx.x / blocks / states.heads;
  const int64_t begin = sequences.begins[sequence], end = sequences.begins[sequence + 1];
  const int64_t chunks = (end - begin + kChunk - 1) / kChunk;
  const int64_t at = element / columns * states.columns + element % columns;
  float sum = 0;
  for (int64_t i = 1; i < chunks; ++i) {
    const int64_t place = begin / kChunk + (kForward ? i : chunks - i);
    float& state = states.Of(place, head)[at];
    sum = fmaf(decays[place * states.heads + head], sum, state);
    state = sum;
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads) OutputsKernel(StateSpaceArgs args) {
  __shared__ ProductParts parts;
  __shared__ Decays decays;
  __shared__ TokenSquare weights;
  const BlockHead at(blockIdx.x, args.groups, args.group_heads);
  const float skip = ToFloat(static_cast<const T*>(args.skip)[at.head]);
  ForEachChunk(args.sequences, at.outer, [&](const TokenChunk& chunk) {
    const int count = chunk.count;
    const ChunkInputs<T> in{args, chunk, at.group, at.of_group};
    FillDecays<T>(args.decay, chunk, at, &decays);
    ChunkTile products;
    products.Add<kDepth, kDepth>(
        count, count, args.state, [&](int i, int64_t n) { return in.C(i, n); },
        [&](int64_t n, int j) { return in.B(j, n); }, &parts);
    products.ForEach(count, count, [&](int i, int j, float product) {
      weights.at[i][j] = product * decays.Between(i, j) * decays.step[j];
    });
    ForEachPart(args.channels, [&](int first, int columns) {
      ChunkTile y;
      y.Add<kDepth, kOther>(
          count, columns, count, [&](int i, int64_t j) { return weights.at[i][j]; },
          [&](int64_t j, int p) { return in.X(j, first + p); }, &parts);
      if (!chunk.first) {
        const float* const state = args.states.Of(chunk.Place(), at.head) + first;
        y.Add<kDepth, kOther>(
            count, columns, args.state,
            [&](int i, int64_t n) { return decays.from_begin[i] * in.C(i, n); },
            [&](int64_t n, int p) { return state[n * args.states.columns + p]; }, &parts);
      }
      y.ForEach(count, columns, [&](int i, int p, float sum) {
        args.y.Row<T>(chunk.begin + i, at.group, at.of_group)[first + p] =
            FromFloat<T>(fmaf(skip, in.X(i, first + p), sum));
      });
    });
  });
}

// Sums over a chunk's tokens' channels, and the gradients of logarithms of decays.
struct TokenSums {
  float of_update[kChunk];  // x times the gradient of what is added to the state
  float of_read[kChunk];    // dy times what is read from the state
  float of_skip[kChunk];    // dy times x
  float log_decay[kChunk];
};

// Writes the gradients of x and of the raw steps, and the sums of the place.
template <typename T>
__global__ void __launch_bounds__(kThreads) HeadGradientsKernel(StateSpaceArgs args) {
  __shared__ ProductParts parts;
  __shared__ Decays decays;
  __shared__ TokenSquare weights;    // the factors of x in y
  __shared__ TokenSquare step_part;  // their gradients, times the weights without the steps
  __shared__ TokenSums sums;
  __shared__ float partial[kWarps];
  const BlockHead at(blockIdx.x, args.groups, args.group_heads);
  const float skip = ToFloat(static_cast<const T*>(args.skip)[at.head]);
  float of_bias = 0, of_a_log = 0, of_skip = 0;
  ForEachChunk(args.sequences, at.outer, [&](const TokenChunk& chunk) {
    const int count = chunk.count, t = threadIdx.x;
    const ChunkInputs<T> in{args, chunk, at.group, at.of_group};
    FillDecays<T>(args.decay, chunk, at, &decays);
    if (t < kChunk) sums.of_update[t] = sums.of_read[t] = sums.of_skip[t] = 0;
    ChunkTile products, gradients;
    products.Add<kDepth, kDepth>(
        count, count, args.state, [&](int i, int64_t n) { return in.C(i, n); },
        [&](int64_t n, int j) { return in.B(j, n); }, &parts);
    gradients.Add<kDepth, kDepth>(
        count, count, args.channels, [&](int i, int64_t p) { return in.Dy(i, p); },
        [&](int64_t p, int j) { return in.X(j, p); }, &parts);
    products.ForEach(count, count, [&](int i, int j, float product) {
      step_part.at[i][j] = product * decays.Between(i, j);
      weights.at[i][j] = step_part.at[i][j] * decays.step[j];
    });
    gradients.ForEach(count, count,
                      [&](int i, int j, float gradient) { step_part.at[i][j] *= gradient; });
    __syncthreads();
    // No decay lies between a token and itself.
    float of_step = 0, of_log = 0;
    if (t < count) {
      for (int j = 0; j < t; ++j) of_log = fmaf(step_part.at[t][j], decays.step[j], of_log);
      float behind = 0;
      for (int i = t + 1; i < count; ++i) behind += step_part.at[i][t];
      of_step = behind + step_part.at[t][t];
      of_log -= behind * decays.step[t];
    }

    const float* const dstate =
        chunk.last ? nullptr : args.state_gradients.Of(chunk.NextPlace(), at.head);
    const float* const state = chunk.first ? nullptr : args.states.Of(chunk.Place(), at.head);
    ForEachPart(args.channels, [&](int first, int columns) {
      ChunkTile dx;
      dx.Add<kOther, kOther>(
          count, columns, count, [&](int j, int64_t i) { return weights.at[i][j]; },
          [&](int64_t i, int p) { return in.Dy(i, first + p); }, &parts);
      if (!chunk.last) {
        ChunkTile through;
        through.Add<kDepth, kOther>(
            count, columns, args.state, [&](int i, int64_t n) { return in.B(i, n); },
            [&](int64_t n, int p) { return dstate[n * args.states.columns + first + p]; }, &parts);
        through.AddRowSums(
            count, columns, [&](int i, int p, float value) { return value * in.X(i, first + p); },
            sums.of_update);
        dx.AddTimes(through, [&](int i, int) { return decays.to_end[i] * decays.step[i]; });
      }
      if (!chunk.first) {
        ChunkTile read;
        read.Add<kDepth, kOther>(
            count, columns, args.state, [&](int i, int64_t n) { return in.C(i, n); },
            [&](int64_t n, int p) { return state[n * args.states.columns + first + p]; }, &parts);
        read.AddRowSums(
            count, columns, [&](int i, int p, float value) { return value * in.Dy(i, first + p); },
            sums.of_read);
      }
      dx.AddRowSums(
          count, columns,
          [&](int i, int p, float) { return in.X(i, first + p) * in.Dy(i, first + p); },
          sums.of_skip);
      dx.ForEach(count, columns, [&](int i, int p, float sum) {
        args.dx.Row<T>(chunk.begin + i, at.group, at.of_group)[first + p] =
            FromFloat<T>(fmaf(skip, in.Dy(i, first + p), sum));
      });
    });
    __syncthreads();

    // The gradient of the logarithm of the decay over the chunk.
    float whole = 0;
    if (!chunk.last) {
      for (int i = 0; i < count; ++i)
        whole = fmaf(decays.to_end[i] * decays.step[i], sums.of_update[i], whole);
      if (!chunk.first) {
        whole += decays.whole *
                 DotOfStates(args.states, args.state, args.channels, dstate, state, partial);
      }
    }
    if (t < count) {
      const float update = decays.to_end[t] * sums.of_update[t];
      of_step += update;
      sums.log_decay[t] = of_log - decays.step[t] * update + decays.from_begin[t] * sums.of_read[t];
    }
    __syncthreads();
    float dbias = 0, drate = 0, dskip = 0;
    if (t < count) {
      // The decay up to a token has the steps up to it.
      const float behind = whole + SumFrom(t, count, sums.log_decay);
      dbias = (of_step - decays.rate * behind) * Logistic(decays.raw[t]);
      drate = -decays.step[t] * behind;
      dskip = sums.of_skip[t];
      *args.dstep.Row<T>(chunk.begin + t, at.group, at.of_group) = FromFloat<T>(dbias);
    }
    of_bias += BlockSum(dbias, partial);
    of_a_log += BlockSum(drate, partial) * decays.rate;
    of_skip += BlockSum(dskip, partial);
  });
  if (threadIdx.x > 0) return;
  const int64_t size = args.places * args.states.heads, i = at.outer * args.states.heads + at.head;
  args.sums[i] = of_bias;
  args.sums[size + i] = of_a_log;
  args.sums[2 * size + i] = of_skip;
}

// Writes the gradients of B and C, which are sums over the heads of a group.
template <typename T>
__global__ void __launch_bounds__(kThreads) GroupGradientsKernel(StateSpaceArgs args) {
  __shared__ ProductParts parts;
  __shared__ Decays decays;
  __shared__ TokenSquare products;  // the gradients of the products of C and B
  const int64_t place = blockIdx.x / args.groups, group = blockIdx.x % args.groups;
  const int64_t first_head = group * args.group_heads;
  ForEachChunk(args.sequences, place, [&](const TokenChunk& chunk) {
    const int count = chunk.count;
    ChunkTile all;
    for (int64_t r = 0; r < args.group_heads; ++r) {
      const ChunkInputs<T> in{args, chunk, group, r};
      FillDecays<T>(args.decay, chunk, BlockHead(first_head + r, args.groups, args.group_heads),
                    &decays);
      ChunkTile gradients;
      gradients.Add<kDepth, kDepth>(
          count, count, args.channels, [&](int i, int64_t p) { return in.Dy(i, p); },
          [&](int64_t p, int j) { return in.X(j, p); }, &parts);
      all.AddTimes(gradients, [&](int i, int j) { return decays.Between(i, j) * decays.step[j]; });
    }
    __syncthreads();  // the previous chunk's products have been read
    all.ForEach(count, count, [&](int i, int j, float sum) { products.at[i][j] = sum; });

    ForEachPart(args.state, [&](int first, int columns) {
      ChunkTile db, dc;
      const ChunkInputs<T> shared{args, chunk, group, 0};
      db.Add<kOther, kOther>(
          count, columns, count, [&](int j, int64_t i) { return products.at[i][j]; },
          [&](int64_t i, int n) { return shared.C(i, first + n); }, &parts);
      dc.Add<kDepth, kOther>(
          count, columns, count, [&](int i, int64_t j) { return products.at[i][j]; },
          [&](int64_t j, int n) { return shared.B(j, first + n); }, &parts);
      for (int64_t r = 0; r < args.group_heads; ++r) {
        const ChunkInputs<T> in{args, chunk, group, r};
        const BlockHead at(first_head + r, args.groups, args.group_heads);
        FillDecays<T>(args.decay, chunk, at, &decays);
        if (!chunk.last) {
          const float* const dstate =
              args.state_gradients.Of(chunk.NextPlace(), at.head) + first * args.states.columns;
          db.Add<kDepth, kDepth>(
              count, columns, args.channels,
              [&](int i, int64_t p) { return decays.to_end[i] * decays.step[i] * in.X(i, p); },
              [&](int64_t p, int n) { return dstate[n * args.states.columns + p]; }, &parts);
        }
        if (!chunk.first) {
          const float* const state =
              args.states.Of(chunk.Place(), at.head) + first * args.states.columns;
          dc.Add<kDepth, kDepth>(
              count, columns, args.channels,
              [&](int i, int64_t p) { return decays.from_begin[i] * in.Dy(i, p); },
              [&](int64_t p, int n) { return state[n * args.states.columns + p]; }, &parts);
        }
      }
      db.ForEach(count, columns, [&](int i, int n, float sum) {
        args.db.Row<T>(chunk.begin + i, group, 0)[first + n] = FromFloat<T>(sum);
      });
      dc.ForEach(count, columns, [&](int i, int n, float sum) {
        args.dc.Row<T>(chunk.begin + i, group, 0)[first + n] = FromFloat<T>(sum);
      });
    });
  });
}

StateSpaceArgs ArgsOf(const Tensor& cu_seqlens, const StateSpaceInputs& in, const Tensor& states) {
  StateSpaceArgs args;
  args.sequences = SequencesOf(cu_seqlens);
  args.places = ChunkPlaces(in.x_TGRP.dim(0));
  args.groups = in.x_TGRP.dim(1);
  args.group_heads = in.x_TGRP.dim(2);
  args.channels = static_cast<int>(in.x_TGRP.dim(3));
  args.state = static_cast<int>(in.b_TGN.dim(2));
  args.x = RowsOf(in.x_TGRP);
  args.b = RowsOf(in.b_TGN);
  args.c = RowsOf(in.c_TGN);
  args.decay = {NumbersOf(in.step_TGR), in.step_bias_H.raw(), in.a_log_H.raw()};
  args.skip = in.skip_H.raw();
  args.states = StatesOf(states);
  return args;
}

// Finds the states at the beginnings of chunks. `T` is the type of the operands.
template <typename T>
void FindStates(const Stream& stream, const StateSpaceArgs& args) {
  ChunkStatesKernel<T>
      <<<Blocks(args.places * args.heads(), 1), kThreads, 0, Handle(stream)>>>(args);
  CheckLaunched("states of chunks");
  const int64_t size = static_cast<int64_t>(args.state) * args.channels;
  const int64_t blocks = args.sequences.count * args.heads() * Blocks(size, kThreads);
  CarryKernel<true><<<Blocks(blocks, 1), kThreads, 0, Handle(stream)>>>(
      args.sequences, args.states, args.decay_to_state, args.state, args.channels);
  CheckLaunched("states");
}

template <typename T>
void FindStateGradients(const Stream& stream, const StateSpaceArgs& args) {
  ChunkStateGradientsKernel<T>
      <<<Blocks(args.places * args.heads(), 1), kThreads, 0, Handle(stream)>>>(args);
  CheckLaunched("gradients of chunks' states");
  const int64_t size = static_cast<int64_t>(args.state) * args.channels;
  const int64_t blocks = args.sequences.count * args.heads() * Blocks(size, kThreads);
  CarryKernel<false><<<Blocks(blocks, 1), kThreads, 0, Handle(stream)>>>(
      args.sequences, args.state_gradients, args.decay_of_gradient, args.state, args.channels);
  CheckLaunched("gradients of states");
}

// Takes the memory of the decays over chunks.
void TakeDecays(const Stream& stream, StateSpaceArgs* args) {
  const int64_t size = args->places * args->heads();
  args->decay_to_state =
      static_cast<float*>(stream.cuda()->Workspace(2 * size * static_cast<int64_t>(sizeof(float))));
  args->decay_of_gradient = args->decay_to_state + size;
}

}  // namespace

void StateSpaceForward(const Stream& stream, const Tensor& cu_seqlens, const StateSpaceInputs& in,
                       const Tensor& states, const Tensor& y_TGRP) {
  if (in.x_TGRP.numel() == 0) return;
  StateSpaceArgs args = ArgsOf(cu_seqlens, in, states);
  args.y = RowsOf(y_TGRP);
  TakeDecays(stream, &args);
  WithType(in.x_TGRP.dtype(), [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    FindStates<T>(stream, args);
    OutputsKernel<T><<<Blocks(args.places * args.heads(), 1), kThreads, 0, Handle(stream)>>>(args);
    CheckLaunched("outputs of state spaces");
  });
}

void StateSpaceBackward(const Stream& stream, const Tensor& cu_seqlens, const StateSpaceInputs& in,
                        const Tensor& dy_TGRP, const StateSpaceScratch& scratch,
                        const StateSpaceInputs& gradients) {
  if (in.x_TGRP.numel() == 0) return;
  StateSpaceArgs args = ArgsOf(cu_seqlens, in, scratch.states);
  args.state_gradients = StatesOf(scratch.state_gradients);
  args.sums = static_cast<float*>(scratch.sums.raw());
  args.dy = RowsOf(dy_TGRP);
  args.dx = RowsOf(gradients.x_TGRP);
  args.db = RowsOf(gradients.b_TGN);
  args.dc = RowsOf(gradients.c_TGN);
  args.dstep = NumbersOf(gradients.step_TGR);
  TakeDecays(stream, &args);
  WithType(in.x_TGRP.dtype(), [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    FindStates<T>(stream, args);
    FindStateGradients<T>(stream, args);
    HeadGradientsKernel<T>
        <<<Blocks(args.places * args.heads(), 1), kThreads, 0, Handle(stream)>>>(args);
    CheckLaunched("gradients of heads");
    GroupGradientsKernel<T>
        <<<Blocks(args.places * args.groups, 1), kThreads, 0, Handle(stream)>>>(args);
    CheckLaunched("gradients of groups");
  });
  const auto floats = [](const Tensor& x) { return static_cast<float*>(x.raw()); };
  AddSlices(args.sums, args.places, args.heads(),
            {floats(gradients.step_bias_H), floats(gradients.a_log_H), floats(gradients.skip_H)},
            Handle(stream));
}

MEGATRON_CUDA_KERNEL(StateSpaceForward);
MEGATRON_CUDA_KERNEL(StateSpaceBackward);

}  // namespace megatron::ops::cuda
