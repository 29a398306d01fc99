// Ops that are bound by memory, beside the memory bandwidth of the same threads in the same
// process: `of_bandwidth` is the rate of the op divided by the bandwidth, which is the rate of
// scaling a tensor in place. Both are measured in turn.
//
// A rate counts each byte of the tensors once, whether it is read, written or both: processors read
// a line before they write it. Tensors have 256 MiB.
#include <chrono>
#include <vector>

#include "benchmark/benchmark.h"
#include "megatron/base/thread_pool.h"
#include "megatron/ops/activation.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/norm.h"
#include "megatron/ops/optimizer.h"
#include "megatron/tensor/memory.h"

namespace megatron::ops {
namespace {

constexpr int64_t kColumns = 1024, kRows = 65536, kCount = kRows * kColumns;

template <typename Body>
double Seconds(const Body& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

class Operands {
 public:
  Tensor Of(const Shape& shape) {
    buffers_.emplace_back(Device{}, shape.numel() * SizeOf(DType::kFloat32), "benchmark", nullptr);
    const Tensor tensor = buffers_.back().At(0, DType::kFloat32, shape);
    for (int64_t i = 0; i < shape.numel(); ++i)
      tensor.data<float>()[i] = static_cast<float>(i % 13 + 1) / 16;
    return tensor;
  }
  Tensor Rows() { return Of({kRows, kColumns}); }
  Tensor Flat() { return Of({kCount}); }
  const Stream& stream() const { return stream_; }

 private:
  ThreadPool pool_{AvailableCores()};
  Stream stream_ = Stream::Cpu(&pool_);
  std::vector<Buffer> buffers_;
};

// `tensors` is the number of tensors of kCount floats that the op reads or writes.
template <typename Op>
void Compare(benchmark::State& state, Operands* operands, int tensors, const Op& op) {
  const Tensor scaled = operands->Flat();
  const auto scale = [&] { Scale(operands->stream(), 1.0f, scaled); };
  op();
  scale();
  double op_seconds = 0, scale_seconds = 0;
  for (auto _ : state) {
    const double seconds = Seconds(op);
    op_seconds += seconds;
    scale_seconds += Seconds(scale);
    state.SetIterationTime(seconds);
  }
  const double bytes = 4e-9 * static_cast<double>(kCount * state.iterations());
  state.counters["GB/s"] = tensors * bytes / op_seconds;
  state.counters["bandwidth_GB/s"] = bytes / scale_seconds;
  state.counters["of_bandwidth"] = tensors * scale_seconds / op_seconds;
}

void BM_AdamW(benchmark::State& state) {
  Operands operands;
  const Tensor grad = operands.Flat(), m = operands.Flat(), v = operands.Flat(),
               master = operands.Flat();
  const OptimizerSegment all = {0, kCount, 1e-4f, 0.1f};
  Compare(state, &operands, 4,
          [&] { AdamWUpdate(operands.stream(), {}, {all}, grad, m, v, master, Tensor()); });
}

void BM_SumOfSquares(benchmark::State& state) {
  Operands operands;
  const Tensor x = operands.Flat(), out = operands.Of({2});
  Compare(state, &operands, 1, [&] { SumOfSquares(operands.stream(), 1.0f, x, out); });
}

void BM_NormForward(benchmark::State& state) {
  Operands operands;
  const Tensor x = operands.Rows(), y = operands.Rows(), gamma = operands.Of({kColumns}),
               beta = operands.Of({kColumns});
  const NormTensors tensors = {gamma, beta, operands.Of({kRows}), operands.Of({kRows})};
  Compare(state, &operands, 2, [&] { NormForward(operands.stream(), Norm(), x, tensors, y); });
}

void BM_NormBackward(benchmark::State& state) {
  Operands operands;
  const Tensor dy = operands.Rows(), x = operands.Rows(), dx = operands.Rows();
  const Tensor gamma = operands.Of({kColumns}), beta = operands.Of({kColumns}),
               dgamma = operands.Of({kColumns}), dbeta = operands.Of({kColumns});
  const NormTensors tensors = {gamma, beta, operands.Of({kRows}), operands.Of({kRows})};
  Compare(state, &operands, 3, [&] {
    NormBackward(operands.stream(), Norm(), dy, x, tensors, Tensor(), dx, dgamma, dbeta);
  });
}

void BM_GeluForward(benchmark::State& state) {
  Operands operands;
  const Tensor x = operands.Rows(), y = operands.Rows();
  Compare(state, &operands, 2,
          [&] { ActivationForward(operands.stream(), Activation::kGeluTanh, x, y); });
}

void BM_GeluBackward(benchmark::State& state) {
  Operands operands;
  const Tensor dy = operands.Rows(), x = operands.Rows(), dx = operands.Rows();
  Compare(state, &operands, 3,
          [&] { ActivationBackward(operands.stream(), Activation::kGeluTanh, dy, x, dx); });
}

void OnTheClock(benchmark::internal::Benchmark* benchmark) {
  benchmark->UseManualTime()->Unit(benchmark::kMillisecond);
}
BENCHMARK(BM_AdamW)->Apply(OnTheClock);
BENCHMARK(BM_SumOfSquares)->Apply(OnTheClock);
BENCHMARK(BM_NormForward)->Apply(OnTheClock);
BENCHMARK(BM_NormBackward)->Apply(OnTheClock);
BENCHMARK(BM_GeluForward)->Apply(OnTheClock);
BENCHMARK(BM_GeluBackward)->Apply(OnTheClock);

}  // namespace
}  // namespace megatron::ops
