// Quantization to 8-bit floats and their products on a GPU. A product's `roofline` is the share of
// bf16's rate, as beside it in BM_Linear: above 1 is what no product in bf16 can reach.
#include "benchmark/benchmark.h"
#include "megatron/ops/cuda/gpu_benchmark.h"
#include "megatron/ops/float8/product.h"
#include "megatron/ops/float8/quantize.h"

namespace megatron::ops {
namespace {

// A random tensor and room for both forms of its codes.
struct Operand {
  Operand(Gpu* gpu, int64_t rows, int64_t columns, Float8Format format)
      : x(gpu->Normal({rows, columns}, kBf16)),
        amax(gpu->Normal({1}, kFp32)),
        codes({format, gpu->Allocate(DType::kUInt8, {rows, columns}),
               gpu->Allocate(DType::kUInt8, {columns, Float8Padded(rows)}),
               gpu->Normal({1}, kFp32)}) {
    Run(gpu);
  }
  void Run(Gpu* gpu) const {
    AbsMax(gpu->stream(), x, amax);
    Quantize(gpu->stream(), x, amax, codes);
  }

  Tensor x, amax;
  Float8Tensor codes;
};

void BM_Quantize(benchmark::State& state) {
  const int64_t columns = state.range(0);
  // x counts twice: it can be quantized when all of it was seen, and no sooner.
  Measure(state, {6.0 * kTokens * columns}, [&](Gpu& gpu) {
    const Operand operand(&gpu, kTokens, columns, Float8Format::kE4M3);
    return [=, &gpu] { operand.Run(&gpu); };
  });
}
BENCHMARK(BM_Quantize)->Arg(kHidden)->Arg(kFfn)->UseManualTime();

void BM_Float8Linear(benchmark::State& state) {
  const int64_t in = state.range(0), out = state.range(1);
  Measure(state, {1.0 * in * (kTokens + out) + 2.0 * kTokens * out, 2.0 * kTokens * in * out},
          [&](Gpu& gpu) {
            const Operand x(&gpu, kTokens, in, Float8Format::kE4M3),
                w(&gpu, out, in, Float8Format::kE4M3);
            const Tensor bias = gpu.Normal({out}, kBf16), y = gpu.Normal({kTokens, out}, kBf16);
            return [=, &gpu] {
              Float8Product(gpu.stream(), x.codes.AsItIs(), w.codes.AsItIs(), bias, y);
            };
          });
}

void BM_Float8LinearBackwardWeight(benchmark::State& state) {
  const int64_t in = state.range(0), out = state.range(1);
  Measure(state, {1.0 * kTokens * (in + out) + 8.0 * in * out, 2.0 * kTokens * in * out},
          [&](Gpu& gpu) {
            const Operand x(&gpu, kTokens, in, Float8Format::kE4M3),
                dy(&gpu, kTokens, out, Float8Format::kE5M2);
            const Tensor dw = gpu.Normal({out, in}, kFp32);
            return [=, &gpu] {
              AddFloat8Product(gpu.stream(), dy.codes.Transposed(), x.codes.Transposed(), dw);
            };
          });
}

void LinearShapes(benchmark::internal::Benchmark* benchmark) {
  for (const auto& [in, out] : {std::pair{kHidden, 3 * kHidden}, std::pair{kHidden, kHidden},
                                std::pair{kHidden, kFfn}, std::pair{kFfn, kHidden}}) {
    benchmark->Args({in, out});
  }
  benchmark->UseManualTime();
}
BENCHMARK(BM_Float8Linear)->Apply(LinearShapes);
BENCHMARK(BM_Float8LinearBackwardWeight)->Apply(LinearShapes);

}  // namespace
}  // namespace megatron::ops
