// Speed of the ops that move memory, besides those of kernels_benchmark.cc, and of experts' ops, at
// the same shapes.
#include <utility>
#include <vector>

#include "benchmark/benchmark.h"
#include "megatron/ops/activation.h"
#include "megatron/ops/cuda/gpu_benchmark.h"
#include "megatron/ops/dropout.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/moe/grouped_linear.h"
#include "megatron/ops/moe/permute.h"
#include "megatron/ops/norm.h"
#include "megatron/ops/optimizer.h"
#include "megatron/ops/rope.h"

namespace megatron::ops {
namespace {

void BM_GeluBackward(benchmark::State& state) {
  const Shape shape = {kTokens, kFfn};
  Measure(state, {3 * 2.0 * kTokens * kFfn}, [&](Gpu& gpu) {
    const Tensor x = gpu.Normal(shape, kBf16), dy = gpu.Normal(shape, kBf16),
                 dx = gpu.Normal(shape, kBf16);
    return [=, &gpu] { ActivationBackward(gpu.stream(), Activation::kGeluTanh, dy, x, dx); };
  });
}
BENCHMARK(BM_GeluBackward)->UseManualTime();

void BM_SwiGluBackward(benchmark::State& state) {
  const Shape twice = {kTokens, 2 * kFfn};
  Measure(state, {5 * 2.0 * kTokens * kFfn}, [&](Gpu& gpu) {
    const Tensor gate_up = gpu.Normal(twice, kBf16), d_gate_up = gpu.Normal(twice, kBf16),
                 dy = gpu.Normal({kTokens, kFfn}, kBf16);
    return [=, &gpu] { GateBackward(gpu.stream(), Activation::kSilu, dy, gate_up, d_gate_up); };
  });
}
BENCHMARK(BM_SwiGluBackward)->UseManualTime();

void BM_DropoutBackward(benchmark::State& state) {
  Measure(state, {2 * 2.0 * kTokens * kHidden}, [&](Gpu& gpu) {
    const Tensor dy = gpu.Normal({kTokens, kHidden}, kBf16),
                 dx = gpu.Normal({kTokens, kHidden}, kBf16), dbias = gpu.Normal({kHidden}, kFp32);
    const Dropout dropout = {
        0.1f, {1, 2}, gpu.Of(std::vector<int64_t>(kTokens, 5), DType::kInt64), gpu.Ids(2048), 0};
    return [=, &gpu] { DropoutBackward(gpu.stream(), dropout, dy, dx, dbias); };
  });
}
BENCHMARK(BM_DropoutBackward)->UseManualTime();

Norm NormOf(const benchmark::State& state) {
  Norm norm;
  norm.kind = static_cast<Norm::Kind>(state.range(0));
  return norm;
}

NormTensors TensorsOf(const Norm& norm, Gpu* gpu) {
  const bool centered = norm.kind == Norm::kLayerNorm;
  return {gpu->Normal({kHidden}, kBf16), centered ? gpu->Normal({kHidden}, kBf16) : Tensor(),
          centered ? gpu->Normal({kTokens}, kFp32) : Tensor(), gpu->Normal({kTokens}, kFp32)};
}

void BM_Norm(benchmark::State& state) {
  const Norm norm = NormOf(state);
  Measure(state, {2 * 2.0 * kTokens * kHidden}, [&](Gpu& gpu) {
    const Tensor x = gpu.Normal({kTokens, kHidden}, kBf16),
                 y = gpu.Normal({kTokens, kHidden}, kBf16);
    const NormTensors tensors = TensorsOf(norm, &gpu);
    return [=, &gpu] { NormForward(gpu.stream(), norm, x, tensors, y); };
  });
}
BENCHMARK(BM_Norm)->ArgName("rms")->Arg(Norm::kLayerNorm)->Arg(Norm::kRmsNorm)->UseManualTime();

void BM_RmsNormBackward(benchmark::State& state) {
  Norm norm;
  norm.kind = Norm::kRmsNorm;
  const Shape shape = {kTokens, kHidden};
  Measure(state, {4 * 2.0 * kTokens * kHidden, 0, kNormBackwardFloor}, [&](Gpu& gpu) {
    const Tensor x = gpu.Normal(shape, kBf16), around = gpu.Normal(shape, kBf16),
                 dy = gpu.Normal(shape, kBf16), dx = gpu.Normal(shape, kBf16),
                 dgamma = gpu.Normal({kHidden}, kFp32);
    const NormTensors tensors = TensorsOf(norm, &gpu);
    return [=, &gpu] {
      NormBackward(gpu.stream(), norm, dy, x, tensors, around, dx, dgamma, Tensor());
    };
  });
}
BENCHMARK(BM_RmsNormBackward)->UseManualTime();

void BM_Rope(benchmark::State& state) {
  Measure(state, {2 * 2.0 * kTokens * 16 * 64}, [&](Gpu& gpu) {
    const Tensor x = gpu.Normal({kTokens, 16, 64}, kBf16), cos = gpu.Normal({2048, 32}, kFp32),
                 sin = gpu.Normal({2048, 32}, kFp32), position = gpu.Ids(2048);
    return [=, &gpu] {
      Rope(gpu.stream(), cos, sin, position, /*interleaved=*/false, /*inverse=*/false, x);
    };
  });
}
BENCHMARK(BM_Rope)->UseManualTime();

constexpr int64_t kMany = int64_t{128} << 20;

void BM_Cast(benchmark::State& state) {
  Measure(state, {6.0 * kMany}, [&](Gpu& gpu) {
    Tensor from = gpu.Normal({kMany}, kFp32), to = gpu.Normal({kMany}, kBf16);
    if (state.range(0) == 1) std::swap(from, to);
    return [=, &gpu] { Copy(gpu.stream(), from, to); };
  });
}
BENCHMARK(BM_Cast)->ArgName("to_fp32")->Arg(0)->Arg(1)->UseManualTime();

void BM_SumOfSquares(benchmark::State& state) {
  Measure(state, {4.0 * kMany}, [&](Gpu& gpu) {
    const Tensor x = gpu.Normal({kMany}, kFp32), sum = gpu.Allocate(kFp32, {2});
    return [=, &gpu] { SumOfSquares(gpu.stream(), 1, x, sum); };
  });
}
BENCHMARK(BM_SumOfSquares)->UseManualTime();

// Two of eight experts for each token, chosen at random.
struct Experts {
  static constexpr int64_t kExperts = 8, kChosen = 2, kRows = kTokens * kChosen;

  explicit Experts(Gpu* gpu) {
    std::vector<int32_t> chosen;
    std::vector<int64_t> rows(kExperts);
    for (int64_t t = 0; t < kTokens; ++t) {
      const uint32_t word = Philox({5, 6}, {{static_cast<uint32_t>(t), 0, 0, 0}}).word[0];
      const int32_t first = static_cast<int32_t>(word % kExperts);
      for (int32_t expert :
           {first, static_cast<int32_t>((first + 1 + word / kExperts % 7) % kExperts)}) {
        chosen.push_back(expert);
        ++rows[expert];
      }
    }
    const Tensor expert = gpu->Of(std::move(chosen), DType::kInt32).View({kTokens, kChosen}),
                 counts = gpu->Allocate(DType::kInt64, {1, 1, kExperts});
    place = gpu->Allocate(DType::kInt32, {kTokens, kChosen, 1});
    PlaceByExpert(gpu->stream(), expert, place, counts);
    int64_t begin = 0;
    for (int64_t e = 0; e < kExperts; ++e) {
      groups.push_back({e, begin, begin + rows[e]});
      begin += rows[e];
    }
  }

  Tensor place;
  std::vector<RowGroup> groups;
};

void BM_Permute(benchmark::State& state) {
  Measure(state, {2.0 * (kTokens + Experts::kRows) * kHidden}, [&](Gpu& gpu) {
    const Experts experts(&gpu);
    const Tensor x = gpu.Normal({kTokens, kHidden}, kBf16),
                 out = gpu.Normal({Experts::kRows, kHidden}, kBf16);
    return [=, &gpu] { Permute(gpu.stream(), x, experts.place, out); };
  });
}
BENCHMARK(BM_Permute)->UseManualTime();

void BM_Unpermute(benchmark::State& state) {
  Measure(state, {2.0 * (kTokens + Experts::kRows) * kHidden}, [&](Gpu& gpu) {
    const Experts experts(&gpu);
    const Tensor x = gpu.Normal({Experts::kRows, kHidden}, kBf16),
                 probability = gpu.Normal({kTokens, Experts::kChosen}, kFp32),
                 y = gpu.Normal({kTokens, kHidden}, kBf16);
    return [=, &gpu] { Unpermute(gpu.stream(), x, experts.place, probability, y); };
  });
}
BENCHMARK(BM_Unpermute)->UseManualTime();

// Forward, input gradient and weight gradient of the experts' first products.
void BM_GroupedLinear(benchmark::State& state) {
  const int64_t rows = Experts::kRows;
  const double weights = Experts::kExperts * static_cast<double>(kFfn * kHidden);
  const int64_t gradient = state.range(0);  // none, the input's, the weight's
  Measure(state,
          {2.0 * rows * (kHidden + kFfn) + (gradient == 2 ? 8 : 2) * weights,
           2.0 * rows * kHidden * kFfn},
          [&](Gpu& gpu) {
            const Experts experts(&gpu);
            const Tensor x = gpu.Normal({rows, kHidden}, kBf16),
                         y = gpu.Normal({rows, kFfn}, kBf16),
                         w = gpu.Normal({Experts::kExperts, kFfn, kHidden}, kBf16),
                         dw = gpu.Normal({Experts::kExperts, kFfn, kHidden}, kFp32);
            return [=, &gpu] {
              if (gradient == 0) GroupedLinearForward(gpu.stream(), experts.groups, x, w, y);
              if (gradient == 1) GroupedLinearBackwardInput(gpu.stream(), experts.groups, y, w, x);
              if (gradient == 2)
                GroupedLinearBackwardWeight(gpu.stream(), experts.groups, y, x, dw);
            };
          });
}
BENCHMARK(BM_GroupedLinear)->ArgName("gradient")->DenseRange(0, 2)->UseManualTime();

}  // namespace
}  // namespace megatron::ops
