// The update rules on the host's memory, beside STREAM's triad (a = b + s * c) on the same threads
// in the same process. Both are measured in turn.
//
// A rate counts each byte that goes between processor and memory: what is read, what is written,
// and lines that are read because a part of them is written, as all of the triad's `a` are.
// `of_triad` is the ratio of the two rates. Tensors have 256 MiB, weights in bf16 half of it.
#include <immintrin.h>

#include <chrono>
#include <vector>

#include "benchmark/benchmark.h"
#include "megatron/base/thread_pool.h"
#include "megatron/ops/optimizer.h"
#include "megatron/tensor/memory.h"

namespace megatron::ops {
namespace {

constexpr int64_t kCount = int64_t{1} << 26;

template <typename Body>
double Seconds(const Body& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

class Operands {
 public:
  Tensor Floats() {
    const Tensor tensor = Of(DType::kFloat32);
    pool_.ParallelFor(kCount, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        tensor.data<float>()[i] = static_cast<float>(i % 13 + 1) / 16;
    });
    return tensor;
  }
  Tensor Weights() { return Of(DType::kBFloat16); }
  const Stream& stream() const { return stream_; }

 private:
  Tensor Of(DType dtype) {
    buffers_.emplace_back(Device{}, kCount * SizeOf(dtype), "benchmark", nullptr);
    return buffers_.back().At(0, dtype, {kCount});
  }

  ThreadPool pool_{AvailableCores()};
  Stream stream_ = Stream::Cpu(&pool_);
  std::vector<Buffer> buffers_;
};

void Triad(ThreadPool* pool, float* a, const float* b, const float* c) {
  const __m128 s = _mm_set1_ps(3);
  pool->ParallelFor(kCount / 4, [&](int64_t begin, int64_t end) {
    for (int64_t i = 4 * begin; i < 4 * end; i += 4)
      _mm_storeu_ps(a + i, _mm_add_ps(_mm_loadu_ps(b + i), _mm_mul_ps(s, _mm_loadu_ps(c + i))));
  });
}

// `bytes` is the number of bytes that the update reads and writes for each element.
template <typename Update>
void Compare(benchmark::State& state, Operands* operands, int bytes, const Update& update) {
  float* const a = operands->Floats().data<float>();
  const float* const b = operands->Floats().data<float>();
  const float* const c = operands->Floats().data<float>();
  const auto triad = [&] { Triad(operands->stream().pool(), a, b, c); };
  constexpr int kTriadBytes = 16;
  update();
  triad();
  double update_seconds = 0, triad_seconds = 0;
  for (auto _ : state) {
    const double seconds = Seconds(update);
    update_seconds += seconds;
    triad_seconds += Seconds(triad);
    state.SetIterationTime(seconds);
  }
  const double elements = 1e-9 * static_cast<double>(kCount * state.iterations());
  state.counters["GB/s"] = bytes * elements / update_seconds;
  state.counters["triad_GB/s"] = kTriadBytes * elements / triad_seconds;
  state.counters["of_triad"] = bytes * triad_seconds / (kTriadBytes * update_seconds);
  state.counters["Melements/s"] = 1e3 * elements / update_seconds;
}

constexpr OptimizerSegment kAll = {0, kCount, 1e-4f, 0.1f};

void BM_AdamW(benchmark::State& state) {
  Operands operands;
  const Tensor grad = operands.Floats(), m = operands.Floats(), v = operands.Floats(),
               master = operands.Floats();
  Compare(state, &operands, 28,
          [&] { AdamWUpdate(operands.stream(), {}, {kAll}, grad, m, v, master, Tensor()); });
}

void BM_AdamWAndBf16Weights(benchmark::State& state) {
  Operands operands;
  const Tensor grad = operands.Floats(), m = operands.Floats(), v = operands.Floats(),
               master = operands.Floats(), weights = operands.Weights();
  Compare(state, &operands, 32,
          [&] { AdamWUpdate(operands.stream(), {}, {kAll}, grad, m, v, master, weights); });
}

void BM_LionAndBf16Weights(benchmark::State& state) {
  Operands operands;
  const Tensor grad = operands.Floats(), m = operands.Floats(), master = operands.Floats(),
               weights = operands.Weights();
  Compare(state, &operands, 24,
          [&] { LionUpdate(operands.stream(), {}, {kAll}, grad, m, master, weights); });
}

void BM_SgdAndBf16Weights(benchmark::State& state) {
  Operands operands;
  const Tensor grad = operands.Floats(), buffer = operands.Floats(), master = operands.Floats(),
               weights = operands.Weights();
  Compare(state, &operands, 24, [&] {
    SgdUpdate(operands.stream(), {0.9f, 1}, {kAll}, grad, buffer, master, weights);
  });
}

void OnTheClock(benchmark::internal::Benchmark* benchmark) {
  benchmark->UseManualTime()->Unit(benchmark::kMillisecond);
}
BENCHMARK(BM_AdamW)->Apply(OnTheClock);
BENCHMARK(BM_AdamWAndBf16Weights)->Apply(OnTheClock);
BENCHMARK(BM_LionAndBf16Weights)->Apply(OnTheClock);
BENCHMARK(BM_SgdAndBf16Weights)->Apply(OnTheClock);

}  // namespace
}  // namespace megatron::ops
