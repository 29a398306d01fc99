// Speed of the ops of layers with a state, for 8 sequences of 2048 tokens, in the shapes of
// published layers. Operations are those that the chunked forms need (ops/recurrence_benchmark.cc).
#include <cstdint>
#include <vector>

#include "benchmark/benchmark.h"
#include "megatron/ops/causal_conv.h"
#include "megatron/ops/cuda/gpu_benchmark.h"
#include "megatron/ops/gated_delta.h"
#include "megatron/ops/gated_norm.h"
#include "megatron/ops/state_space.h"

namespace megatron::ops {
namespace {

constexpr double kChunk = 64;

Tensor CuSeqlens(Gpu* gpu) {
  std::vector<int32_t> begins;
  for (int32_t begin = 0; begin <= kTokens; begin += 2048) begins.push_back(begin);
  return gpu->Of(begins, DType::kInt32);
}

constexpr int64_t kGroups = 8, kConvolved = 384, kTaps = 4;

void BM_CausalConv(benchmark::State& state) {
  Measure(state, {2 * 2.0 * kTokens * kGroups * kConvolved}, [](Gpu& gpu) {
    const Shape shape = {kTokens, kGroups, kConvolved};
    const CausalConvInputs in = {gpu.Normal(shape, kBf16),
                                 gpu.Normal({kGroups, kConvolved, kTaps}, kBf16),
                                 gpu.Normal({kGroups, kConvolved}, kBf16)};
    const Tensor cu_seqlens = CuSeqlens(&gpu), y = gpu.Normal(shape, kBf16);
    return [=, &gpu] { CausalConvForward(gpu.stream(), cu_seqlens, in, y); };
  });
}
BENCHMARK(BM_CausalConv)->UseManualTime();

void BM_CausalConvBackward(benchmark::State& state) {
  Measure(state, {3 * 2.0 * kTokens * kGroups * kConvolved}, [](Gpu& gpu) {
    const Shape shape = {kTokens, kGroups, kConvolved}, weight = {kGroups, kConvolved, kTaps},
                bias = {kGroups, kConvolved};
    const CausalConvInputs in = {gpu.Normal(shape, kBf16), gpu.Normal(weight, kBf16),
                                 gpu.Normal(bias, kBf16)},
                           gradients = {gpu.Normal(shape, kBf16), gpu.Normal(weight, kFp32),
                                        gpu.Normal(bias, kFp32)};
    const Tensor cu_seqlens = CuSeqlens(&gpu), dy = gpu.Normal(shape, kBf16);
    return [=, &gpu] { CausalConvBackward(gpu.stream(), cu_seqlens, in, dy, gradients); };
  });
}
BENCHMARK(BM_CausalConvBackward)->UseManualTime();

constexpr int64_t kNormWidth = 128;

GatedNormInputs NormInputs(Gpu* gpu, DType gamma) {
  const Shape shape = {kTokens, kGroups, kNormWidth};
  return {gpu->Normal(shape, kBf16), gpu->Normal(shape, kBf16),
          gpu->Normal({kGroups, kNormWidth}, gamma)};
}

void BM_GatedNorm(benchmark::State& state) {
  Measure(state, {3 * 2.0 * kTokens * kGroups * kNormWidth}, [](Gpu& gpu) {
    const GatedNormInputs in = NormInputs(&gpu, kBf16);
    const Tensor y = gpu.Normal(in.x_TGS.shape(), kBf16);
    return [=, &gpu] { GatedNormForward(gpu.stream(), {}, in, y); };
  });
}
BENCHMARK(BM_GatedNorm)->UseManualTime();

void BM_GatedNormBackward(benchmark::State& state) {
  Measure(state, {5 * 2.0 * kTokens * kGroups * kNormWidth, 0, kNormBackwardFloor}, [](Gpu& gpu) {
    const GatedNormInputs in = NormInputs(&gpu, kBf16), gradients = NormInputs(&gpu, kFp32);
    const Tensor dy = gpu.Normal(in.x_TGS.shape(), kBf16);
    return [=, &gpu] { GatedNormBackward(gpu.stream(), {}, in, dy, gradients); };
  });
}
BENCHMARK(BM_GatedNormBackward)->UseManualTime();

// 16 heads of 64 channels with states of 128.
constexpr int64_t kHeads = 2, kChannels = 64, kState = 128;
constexpr double kMambaHeads = kGroups * kHeads, kStateSize = kState * kChannels;

StateSpaceInputs StateSpaceOf(Gpu* gpu, DType of_heads) {
  const auto heads = [&] { return gpu->Normal({kGroups * kHeads}, of_heads); };
  return {gpu->Normal({kTokens, kGroups, kHeads, kChannels}, kBf16),
          gpu->Normal({kTokens, kGroups, kState}, kBf16),
          gpu->Normal({kTokens, kGroups, kState}, kBf16),
          gpu->Normal({kTokens, kGroups, kHeads}, kBf16),
          heads(),
          heads(),
          heads()};
}

void BM_StateSpace(benchmark::State& state) {
  const double bytes = 2.0 * kTokens * kGroups * (2 * kHeads * kChannels + 2 * kState),
               operations = kTokens * (kGroups * kChunk * kState +
                                       kMambaHeads * (kChunk * kChannels + 4 * kStateSize));
  Measure(state, {bytes, operations}, [](Gpu& gpu) {
    const StateSpaceInputs in = StateSpaceOf(&gpu, kBf16);
    const Tensor cu_seqlens = CuSeqlens(&gpu), y = gpu.Normal(in.x_TGRP.shape(), kBf16),
                 states = gpu.Allocate(kFp32, StateSpaceStates(in));
    return [=, &gpu] { StateSpaceForward(gpu.stream(), cu_seqlens, in, states, y); };
  });
}
BENCHMARK(BM_StateSpace)->UseManualTime();

void BM_StateSpaceBackward(benchmark::State& state) {
  const double bytes = 2.0 * kTokens * kGroups * (3 * kHeads * kChannels + 4 * kState),
               operations = kTokens * (3 * kGroups * kChunk * kState +
                                       kMambaHeads * (2 * kChunk * kChannels + 10 * kStateSize));
  Measure(state, {bytes, operations}, [](Gpu& gpu) {
    const StateSpaceInputs in = StateSpaceOf(&gpu, kBf16), gradients = StateSpaceOf(&gpu, kFp32);
    const StateSpaceScratch scratch = {gpu.Allocate(kFp32, StateSpaceStates(in)),
                                       gpu.Allocate(kFp32, StateSpaceStates(in)),
                                       gpu.Allocate(kFp32, StateSpaceSums(in))};
    const Tensor cu_seqlens = CuSeqlens(&gpu), dy = gpu.Normal(in.x_TGRP.shape(), kBf16);
    return [=, &gpu] { StateSpaceBackward(gpu.stream(), cu_seqlens, in, dy, scratch, gradients); };
  });
}
BENCHMARK(BM_StateSpaceBackward)->UseManualTime();

// 4 key heads and 8 value heads of 128 channels.
constexpr int64_t kKeyHeads = 4, kWidth = 128;
constexpr double kDeltaHeads = kKeyHeads * kHeads, kDeltaSize = kWidth * kWidth;

GatedDeltaInputs DeltaOf(Gpu* gpu, DType of_heads) {
  const Shape numbers = {kTokens, kKeyHeads, kHeads};
  return {gpu->Normal({kTokens, kKeyHeads, kWidth}, kBf16),
          gpu->Normal({kTokens, kKeyHeads, kWidth}, kBf16),
          gpu->Normal({kTokens, kKeyHeads, kHeads, kWidth}, kBf16),
          gpu->Normal(numbers, kBf16),
          gpu->Normal(numbers, kBf16),
          gpu->Normal({kKeyHeads * kHeads}, of_heads),
          gpu->Normal({kKeyHeads * kHeads}, of_heads)};
}

GatedDeltaScratch DeltaScratch(Gpu* gpu, const GatedDeltaInputs& in) {
  const auto allocate = [&](const Shape& shape) { return gpu->Allocate(kFp32, shape); };
  return {allocate(GatedDeltaStates(in)), allocate(GatedDeltaKeys(in)),
          allocate(GatedDeltaValues(in)), allocate(GatedDeltaStates(in)),
          allocate(GatedDeltaValues(in)), allocate(GatedDeltaTokenSums(in))};
}

void BM_GatedDelta(benchmark::State& state) {
  const double bytes = 2.0 * kTokens * kKeyHeads * (2 * kWidth + 2 * kHeads * kWidth),
               operations = kTokens * (2 * kKeyHeads * kChunk * kWidth +
                                       kDeltaHeads * (6 * kDeltaSize + 2 * kChunk * kWidth));
  Measure(state, {bytes, operations}, [](Gpu& gpu) {
    const GatedDeltaInputs in = DeltaOf(&gpu, kBf16);
    const GatedDeltaScratch scratch = DeltaScratch(&gpu, in);
    const Tensor cu_seqlens = CuSeqlens(&gpu), out = gpu.Normal(in.v_TGRE.shape(), kBf16);
    return [=, &gpu] { GatedDeltaForward(gpu.stream(), cu_seqlens, in, scratch, out); };
  });
}
BENCHMARK(BM_GatedDelta)->UseManualTime();

void BM_GatedDeltaBackward(benchmark::State& state) {
  const double bytes = 2.0 * kTokens * kKeyHeads * (4 * kWidth + 3 * kHeads * kWidth),
               operations = kTokens * (8 * kKeyHeads * kChunk * kWidth +
                                       kDeltaHeads * (18 * kDeltaSize + 6 * kChunk * kWidth));
  Measure(state, {bytes, operations}, [](Gpu& gpu) {
    const GatedDeltaInputs in = DeltaOf(&gpu, kBf16), gradients = DeltaOf(&gpu, kFp32);
    const GatedDeltaScratch scratch = DeltaScratch(&gpu, in);
    const Tensor cu_seqlens = CuSeqlens(&gpu), dout = gpu.Normal(in.v_TGRE.shape(), kBf16);
    return
        [=, &gpu] { GatedDeltaBackward(gpu.stream(), cu_seqlens, in, dout, scratch, gradients); };
  });
}
BENCHMARK(BM_GatedDeltaBackward)->UseManualTime();

}  // namespace
}  // namespace megatron::ops
