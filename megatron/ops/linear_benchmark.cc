// The matrix products of linear layers at the shapes of a GPT-2 124M step of 1024 tokens, beside
// Eigen's and the peak of the machine's fused multiply-adds, on the same threads in the same
// process: `vs_eigen` is our rate divided by Eigen's, `of_peak` our rate divided by the peak.
//
// Ours, Eigen's and the peak are measured in turn, so that all see the same state of the machine.
// Rates are those of medians.
// Arguments: tokens, output features, input features.
#include <chrono>
#include <vector>

#include "benchmark/benchmark.h"
#include "megatron/base/median.h"
#include "megatron/base/thread_pool.h"
#include "megatron/ops/cpu/eigen_matmul.h"
#include "megatron/ops/cpu/fma_peak.h"
#include "megatron/ops/cpu/isa.h"
#include "megatron/ops/linear.h"
#include "megatron/tensor/memory.h"

namespace megatron::ops {
namespace {

class Operand {
 public:
  Operand(int64_t rows, int64_t columns, DType dtype)
      : buffer_(Device{}, rows * columns * SizeOf(dtype), "benchmark", nullptr),
        tensor_(buffer_.At(0, dtype, {rows, columns})) {
    // Values around 0.5 in any of the formats: no denormals, no infinities.
    const uint16_t bits = dtype == DType::kFloat16 ? 0x3800 : 0x3f00;
    uint16_t* words = static_cast<uint16_t*>(buffer_.data());
    for (int64_t i = 0; i < tensor_.bytes() / 2; ++i) {
      words[i] = static_cast<uint16_t>(bits + i % 7);
    }
  }
  const Tensor& tensor() const { return tensor_; }
  float* floats() const { return tensor_.data<float>(); }

 private:
  Buffer buffer_;
  Tensor tensor_;
};

template <typename Body>
double Seconds(const Body& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

const EigenMatmul& Theirs() {
  return ActiveIsa() == CpuIsa::kAvx512 ? avx512::kEigenMatmul : avx2::kEigenMatmul;
}

template <typename Ours, typename EigenRows>
void Compare(benchmark::State& state, ThreadPool* pool, int64_t rows, const Ours& ours,
             const EigenRows& eigen_rows) {
  const auto theirs = [&] { pool->ParallelFor(rows, eigen_rows); };
  ours();
  theirs();
  std::vector<double> our_seconds, eigen_seconds, peaks;
  for (auto _ : state) {
    our_seconds.push_back(Seconds(ours));
    eigen_seconds.push_back(Seconds(theirs));
    peaks.push_back(MeasureFmaPeak(pool));
    state.SetIterationTime(our_seconds.back());
  }
  const double flops = 2.0 * static_cast<double>(state.range(0) * state.range(1) * state.range(2));
  const double our_rate = flops / Median(our_seconds), eigen_rate = flops / Median(eigen_seconds);
  const double peak = Median(peaks);
  state.counters["GFLOP/s"] = our_rate / 1e9;
  state.counters["eigen_GFLOP/s"] = eigen_rate / 1e9;
  state.counters["vs_eigen"] = our_rate / eigen_rate;
  state.counters["peak_GFLOP/s"] = peak / 1e9;
  state.counters["of_peak"] = our_rate / peak;
}

void BM_Forward(benchmark::State& state) {
  const int64_t tokens = state.range(0), out = state.range(1), in = state.range(2);
  ThreadPool pool(AvailableCores());
  const Stream stream = Stream::Cpu(&pool);
  const Operand x(tokens, in, DType::kFloat32), w(out, in, DType::kFloat32);
  const Operand y(tokens, out, DType::kFloat32);
  Compare(
      state, &pool, tokens,
      [&] { LinearForward(stream, x.tensor(), w.tensor(), Tensor(), y.tensor()); },
      [&](int64_t begin, int64_t end) {
        Theirs().forward(x.floats() + begin * in, w.floats(), y.floats() + begin * out, end - begin,
                         out, in);
      });
}

void BM_BackwardInput(benchmark::State& state) {
  const int64_t tokens = state.range(0), out = state.range(1), in = state.range(2);
  ThreadPool pool(AvailableCores());
  const Stream stream = Stream::Cpu(&pool);
  const Operand dy(tokens, out, DType::kFloat32), w(out, in, DType::kFloat32);
  const Operand dx(tokens, in, DType::kFloat32);
  Compare(
      state, &pool, tokens,
      [&] { LinearBackwardInput(stream, dy.tensor(), w.tensor(), dx.tensor()); },
      [&](int64_t begin, int64_t end) {
        Theirs().backward_input(dy.floats() + begin * out, w.floats(), dx.floats() + begin * in,
                                end - begin, in, out);
      });
}

void BM_BackwardWeight(benchmark::State& state) {
  const int64_t tokens = state.range(0), out = state.range(1), in = state.range(2);
  ThreadPool pool(AvailableCores());
  const Stream stream = Stream::Cpu(&pool);
  const Operand dy(tokens, out, DType::kFloat32), x(tokens, in, DType::kFloat32);
  const Operand dw(out, in, DType::kFloat32);
  Compare(
      state, &pool, out,
      [&] { LinearBackwardWeight(stream, dy.tensor(), x.tensor(), dw.tensor(), Tensor()); },
      [&](int64_t begin, int64_t end) {
        Theirs().backward_weight(dy.floats() + begin, out, x.floats(), dw.floats() + begin * in,
                                 end - begin, in, tokens);
      });
}

void Shapes(benchmark::internal::Benchmark* benchmark) {
  for (const auto& [out, in] :
       {std::pair<int, int>{2304, 768}, {768, 768}, {3072, 768}, {768, 3072}, {50304, 768}}) {
    benchmark->Args({1024, out, in});
  }
  benchmark->Args({512, 768, 3072})->UseManualTime()->Unit(benchmark::kMillisecond);
}
BENCHMARK(BM_Forward)->Apply(Shapes);
BENCHMARK(BM_BackwardInput)->Apply(Shapes);
BENCHMARK(BM_BackwardWeight)->Apply(Shapes);

// The three products of one layer in a storage format: the cost or gain of 16 bits.
void BM_Storage(benchmark::State& state) {
  const DType dtype = static_cast<DType>(state.range(0));
  ThreadPool pool(AvailableCores());
  const Stream stream = Stream::Cpu(&pool);
  const Operand x(1024, 768, dtype), w(3072, 768, dtype), y(1024, 3072, dtype);
  const Operand pre(1024, 3072, dtype), dw(3072, 768, DType::kFloat32);
  const auto layer = [&] {
    LinearActivationForward(stream, Activation::kGeluTanh, x.tensor(), w.tensor(), Tensor(),
                            pre.tensor(), y.tensor());
    LinearBackwardInput(stream, pre.tensor(), w.tensor(), x.tensor());
    LinearBackwardWeight(stream, pre.tensor(), x.tensor(), dw.tensor(), Tensor());
  };
  layer();
  std::vector<double> seconds, peaks;
  for (auto _ : state) {
    seconds.push_back(Seconds(layer));
    peaks.push_back(MeasureFmaPeak(&pool, dtype));
    state.SetIterationTime(seconds.back());
  }
  const double rate = 6.0 * 1024 * 768 * 3072 / Median(seconds), peak = Median(peaks);
  state.counters["GFLOP/s"] = rate / 1e9;
  state.counters["peak_GFLOP/s"] = peak / 1e9;
  state.counters["of_peak"] = rate / peak;
}
BENCHMARK(BM_Storage)
    ->Arg(static_cast<int>(DType::kFloat32))
    ->Arg(static_cast<int>(DType::kBFloat16))
    ->Arg(static_cast<int>(DType::kFloat16))
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

// The products for one generated token, which are bound by reading the weights.
void BM_OneToken(benchmark::State& state) {
  const DType dtype = static_cast<DType>(state.range(0));
  ThreadPool pool(AvailableCores());
  const Stream stream = Stream::Cpu(&pool);
  const Operand x(1, 768, dtype), w(50304, 768, dtype), y(1, 50304, dtype);
  for (auto _ : state) LinearForward(stream, x.tensor(), w.tensor(), Tensor(), y.tensor());
  state.SetBytesProcessed(state.iterations() * w.tensor().bytes());
}
BENCHMARK(BM_OneToken)
    ->Arg(static_cast<int>(DType::kFloat32))
    ->Arg(static_cast<int>(DType::kBFloat16))
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace megatron::ops
