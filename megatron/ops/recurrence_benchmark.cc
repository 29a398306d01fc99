// Speed of the ops of Mamba-2 layers and of gated delta nets in the shapes of published layers.
// `of_bound` is the share that they reach of what bounds them: of the peak of the threads'
// arithmetic for the operations that the chunked form needs, or of the memory's bandwidth for the
// operands, whichever takes longer. Both are measured in turn with the op, the bandwidth by scaling
// a tensor in place. A multiply-add counts as two operations. Bytes of the operands count once, and
// those of scratch memory don't. Scaling reads and writes each byte, and so does an op with the
// bytes of its results, whose lines a processor reads first; of operands that are only read, two
// bytes take the time of one. All tensors lie in memory like that of a run, with large pages.
#include <algorithm>
#include <chrono>

#include "benchmark/benchmark.h"
#include "megatron/base/philox.h"
#include "megatron/base/thread_pool.h"
#include "megatron/ops/causal_conv.h"
#include "megatron/ops/cpu/fma_peak.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/gated_delta.h"
#include "megatron/ops/gated_norm.h"
#include "megatron/ops/state_space.h"
#include "megatron/tensor/memory.h"

namespace megatron::ops {
namespace {

constexpr DType kF32 = DType::kFloat32;
constexpr int64_t kTokens = 2048;
constexpr double kChunk = 64;

template <typename Body>
double Seconds(const Body& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

class Operand {
 public:
  // A tensor of zeros.
  explicit Operand(const Shape& shape, DType dtype = kF32)
      : buffer_(Device{}, shape.numel() * SizeOf(dtype), "benchmark", nullptr),
        tensor_(buffer_.At(0, dtype, shape)) {}
  static Operand Normal(const Shape& shape, uint32_t seed) {
    Operand operand(shape);
    FillNormal({seed, 0}, 0, shape.numel(), operand.tensor_.data<float>());
    return operand;
  }

  const Tensor& tensor() const { return tensor_; }
  operator const Tensor&() const { return tensor_; }

 private:
  Buffer buffer_;
  Tensor tensor_;
};

double BytesOf(const Operand& x) { return static_cast<double>(x.tensor().bytes()); }

// The bytes of the operands that an op reads, and of those that it writes.
struct Traffic {
  double read, written;
};

template <typename Op>
void Compare(benchmark::State& state, ThreadPool* pool, double operations, const Traffic& bytes,
             const Op& op) {
  const Operand scaled({1 << 26});
  const double as_scaled = (bytes.read + 2 * bytes.written) / 2 / BytesOf(scaled);
  const auto scale = [&] { Scale(Stream::Cpu(pool), 1.0f, scaled); };
  scale();
  op();
  double seconds = 0, bound = 0;
  for (auto _ : state) {
    const double of_op = Seconds(op);
    seconds += of_op;
    bound += std::max(operations / MeasureFmaPeak(pool), as_scaled * Seconds(scale));
    state.SetIterationTime(of_op);
  }
  const auto rate = benchmark::Counter::kIsIterationInvariantRate;
  state.counters["FLOP/s"] = benchmark::Counter(operations, rate);
  state.counters["B/s"] = benchmark::Counter(bytes.read + bytes.written, rate);
  state.counters["of_bound"] = bound / seconds;
}

Operand CuSeqlens() {
  Operand cu_seqlens({2}, DType::kInt32);
  cu_seqlens.tensor().data<int32_t>()[1] = kTokens;
  return cu_seqlens;
}

// Groups, heads of each, channels of a head, size of the state.
struct StateSpaceCase {
  int64_t groups, heads, channels, state;

  double Forward() const {
    const double g = static_cast<double>(groups), h = static_cast<double>(groups * heads),
                 p = static_cast<double>(channels), n = static_cast<double>(state);
    return kTokens * (g * kChunk * n + h * (kChunk * p + 4 * n * p));
  }
  double Backward() const {
    const double g = static_cast<double>(groups), h = static_cast<double>(groups * heads),
                 p = static_cast<double>(channels), n = static_cast<double>(state);
    return kTokens * (3 * g * kChunk * n + h * (2 * kChunk * p + 10 * n * p));
  }
};
const StateSpaceCase kStateSpaces[] = {{8, 2, 64, 128}, {1, 8, 64, 128}, {4, 4, 64, 64}};

struct StateSpaceOperands {
  Operand packed, gradients, parameters, parameter_gradients, y, states, state_gradients, sums,
      cu_seqlens = CuSeqlens();
  StateSpaceInputs in, out;

  explicit StateSpaceOperands(const StateSpaceCase& c)
      : packed(Operand::Normal({kTokens, c.groups, Width(c)}, 1)),
        gradients({kTokens, c.groups, Width(c)}),
        parameters(Operand::Normal({3, c.groups * c.heads}, 2)),
        parameter_gradients({3, c.groups * c.heads}),
        y(Operand::Normal({kTokens, c.groups, c.heads, c.channels}, 3)),
        states(StateSpaceStates(Parts(c, packed, parameters))),
        state_gradients(states.tensor().shape()),
        sums(StateSpaceSums(Parts(c, packed, parameters))),
        in(Parts(c, packed, parameters)),
        out(Parts(c, gradients, parameter_gradients)) {}

  static int64_t Width(const StateSpaceCase& c) {
    return c.heads * c.channels + 2 * c.state + c.heads;
  }
  static StateSpaceInputs Parts(const StateSpaceCase& c, const Operand& x,
                                const Operand& of_heads) {
    const int64_t b = c.heads * c.channels, step = b + 2 * c.state;
    const Tensor& all = x.tensor();
    return {all.Slice(2, 0, b).SplitDim(2, c.channels),
            all.Slice(2, b, b + c.state),
            all.Slice(2, b + c.state, step),
            all.Slice(2, step, Width(c)),
            of_heads.tensor().Select(0, 0),
            of_heads.tensor().Select(0, 1),
            of_heads.tensor().Select(0, 2)};
  }
};

void BM_StateSpaceForward(benchmark::State& state) {
  const StateSpaceCase& c = kStateSpaces[state.range(0)];
  ThreadPool pool(AvailableCores());
  const StateSpaceOperands x(c);
  Compare(state, &pool, c.Forward(), {BytesOf(x.packed), BytesOf(x.y)},
          [&] { StateSpaceForward(Stream::Cpu(&pool), x.cu_seqlens, x.in, x.states, x.y); });
}
BENCHMARK(BM_StateSpaceForward)->DenseRange(0, 2)->UseManualTime();

void BM_StateSpaceBackward(benchmark::State& state) {
  const StateSpaceCase& c = kStateSpaces[state.range(0)];
  ThreadPool pool(AvailableCores());
  const StateSpaceOperands x(c);
  const Traffic bytes = {BytesOf(x.packed) + BytesOf(x.y), BytesOf(x.gradients)};
  Compare(state, &pool, c.Backward(), bytes, [&] {
    StateSpaceBackward(Stream::Cpu(&pool), x.cu_seqlens, x.in, x.y,
                       {x.states, x.state_gradients, x.sums}, x.out);
  });
}
BENCHMARK(BM_StateSpaceBackward)->DenseRange(0, 2)->UseManualTime();

// Key heads, value heads of each, widths of a key and of a value head.
struct DeltaCase {
  int64_t groups, heads, key, value;

  double Forward() const {
    const double g = static_cast<double>(groups), h = static_cast<double>(groups * heads),
                 k = static_cast<double>(key), v = static_cast<double>(value);
    return kTokens * (2 * g * kChunk * k + h * (6 * k * v + 2 * kChunk * v));
  }
  double Backward() const {
    const double g = static_cast<double>(groups), h = static_cast<double>(groups * heads),
                 k = static_cast<double>(key), v = static_cast<double>(value);
    return kTokens * (7 * g * kChunk * k + h * (18 * k * v + 6 * kChunk * v));
  }
};
const DeltaCase kDeltas[] = {{4, 2, 128, 128}, {8, 1, 64, 64}};

struct DeltaOperands {
  Operand packed, gradients, parameters, parameter_gradients, out, states, keys, values,
      state_gradients, value_gradients, sums, cu_seqlens = CuSeqlens();
  GatedDeltaInputs in, of_gradients;

  explicit DeltaOperands(const DeltaCase& c)
      : packed(Operand::Normal({kTokens, c.groups, Width(c)}, 1)),
        gradients({kTokens, c.groups, Width(c)}),
        parameters(Operand::Normal({2, c.groups * c.heads}, 2)),
        parameter_gradients({2, c.groups * c.heads}),
        out(Operand::Normal({kTokens, c.groups, c.heads, c.value}, 3)),
        states(GatedDeltaStates(Parts(c, packed, parameters))),
        keys(GatedDeltaKeys(Parts(c, packed, parameters))),
        values(GatedDeltaValues(Parts(c, packed, parameters))),
        state_gradients(states.tensor().shape()),
        value_gradients(values.tensor().shape()),
        sums(GatedDeltaTokenSums(Parts(c, packed, parameters))),
        in(Parts(c, packed, parameters)),
        of_gradients(Parts(c, gradients, parameter_gradients)) {}

  GatedDeltaScratch Scratch() const {
    return {states, keys, values, state_gradients, value_gradients, sums};
  }
  static int64_t Width(const DeltaCase& c) { return 2 * c.key + c.heads * c.value + 2 * c.heads; }
  static GatedDeltaInputs Parts(const DeltaCase& c, const Operand& x, const Operand& of_heads) {
    const int64_t beta = 2 * c.key + c.heads * c.value;
    const Tensor& all = x.tensor();
    return {all.Slice(2, 0, c.key),
            all.Slice(2, c.key, 2 * c.key),
            all.Slice(2, 2 * c.key, beta).SplitDim(2, c.value),
            all.Slice(2, beta, beta + c.heads),
            all.Slice(2, beta + c.heads, Width(c)),
            of_heads.tensor().Select(0, 0),
            of_heads.tensor().Select(0, 1)};
  }
};

void BM_GatedDeltaForward(benchmark::State& state) {
  const DeltaCase& c = kDeltas[state.range(0)];
  ThreadPool pool(AvailableCores());
  const DeltaOperands x(c);
  Compare(state, &pool, c.Forward(), {BytesOf(x.packed), BytesOf(x.out)},
          [&] { GatedDeltaForward(Stream::Cpu(&pool), x.cu_seqlens, x.in, x.Scratch(), x.out); });
}
BENCHMARK(BM_GatedDeltaForward)->DenseRange(0, 1)->UseManualTime();

void BM_GatedDeltaBackward(benchmark::State& state) {
  const DeltaCase& c = kDeltas[state.range(0)];
  ThreadPool pool(AvailableCores());
  const DeltaOperands x(c);
  const Traffic bytes = {BytesOf(x.packed) + BytesOf(x.out), BytesOf(x.gradients)};
  Compare(state, &pool, c.Backward(), bytes, [&] {
    GatedDeltaBackward(Stream::Cpu(&pool), x.cu_seqlens, x.in, x.out, x.Scratch(), x.of_gradients);
  });
}
BENCHMARK(BM_GatedDeltaBackward)->DenseRange(0, 1)->UseManualTime();

// Groups and channels of each, as those of x, B and C of the first Mamba-2 layer above.
constexpr int64_t kConvGroups = 8, kChannels = 384, kTaps = 4;

struct ConvOperands {
  Operand x, weight, y, dx, dweight, cu_seqlens = CuSeqlens();

  ConvOperands()
      : x(Operand::Normal({kTokens, kConvGroups, kChannels}, 1)),
        weight(Operand::Normal({kConvGroups, kChannels, kTaps}, 2)),
        y(Operand::Normal({kTokens, kConvGroups, kChannels}, 3)),
        dx({kTokens, kConvGroups, kChannels}),
        dweight({kConvGroups, kChannels, kTaps}) {}
};

void BM_CausalConvForward(benchmark::State& state) {
  ThreadPool pool(AvailableCores());
  const ConvOperands c;
  Compare(state, &pool, 0, {BytesOf(c.x), BytesOf(c.y)}, [&] {
    CausalConvForward(Stream::Cpu(&pool), c.cu_seqlens, {c.x, c.weight, Tensor()}, c.y);
  });
}
BENCHMARK(BM_CausalConvForward)->UseManualTime();

void BM_CausalConvBackward(benchmark::State& state) {
  ThreadPool pool(AvailableCores());
  const ConvOperands c;
  Compare(state, &pool, 0, {2 * BytesOf(c.x), BytesOf(c.dx)}, [&] {
    CausalConvBackward(Stream::Cpu(&pool), c.cu_seqlens, {c.x, c.weight, Tensor()}, c.y,
                       {c.dx, c.dweight, Tensor()});
  });
}
BENCHMARK(BM_CausalConvBackward)->UseManualTime();

// The norm's parts are groups of Mamba-2 heads.
constexpr int64_t kParts = 8, kPartWidth = 256;

struct NormOperands {
  Operand x, z, gamma, y, dx, dz, dgamma;

  NormOperands()
      : x(Operand::Normal({kTokens, kParts, kPartWidth}, 1)),
        z(Operand::Normal({kTokens, kParts, kPartWidth}, 2)),
        gamma(Operand::Normal({kParts, kPartWidth}, 3)),
        y(Operand::Normal({kTokens, kParts, kPartWidth}, 4)),
        dx({kTokens, kParts, kPartWidth}),
        dz({kTokens, kParts, kPartWidth}),
        dgamma({kParts, kPartWidth}) {}
};

void BM_GatedNormForward(benchmark::State& state) {
  ThreadPool pool(AvailableCores());
  const NormOperands c;
  Compare(state, &pool, 0, {2 * BytesOf(c.x), BytesOf(c.y)}, [&] {
    GatedNormForward(Stream::Cpu(&pool), GatedNorm(), {c.x, c.z, c.gamma}, c.y);
  });
}
BENCHMARK(BM_GatedNormForward)->UseManualTime();

void BM_GatedNormBackward(benchmark::State& state) {
  ThreadPool pool(AvailableCores());
  const NormOperands c;
  Compare(state, &pool, 0, {3 * BytesOf(c.x), 2 * BytesOf(c.dx)}, [&] {
    GatedNormBackward(Stream::Cpu(&pool), GatedNorm(), {c.x, c.z, c.gamma}, c.y,
                      {c.dx, c.dz, c.dgamma});
  });
}
BENCHMARK(BM_GatedNormBackward)->UseManualTime();

}  // namespace
}  // namespace megatron::ops
