// Parts that the benchmarks of ops on a GPU share: random operands on the device, and the rate as a
// share of the hardware's.
//
// Counters of a row: `GB/s`, `TFLOP/s`, `roofline` (the share of the bandwidth of the memory or of
// the throughput of the matrix units, whichever bounds it), and `floor`, the share that is
// required. tools/gpu_check prints them as a table; it takes `share` or `plan` in place of
// `roofline` if a row has them.
#ifndef MEGATRON_OPS_CUDA_GPU_BENCHMARK_H_
#define MEGATRON_OPS_CUDA_GPU_BENCHMARK_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "benchmark/benchmark.h"
#include "megatron/base/philox.h"
#include "megatron/ops/elementwise.h"
#include "megatron/tensor/cuda_device.h"
#include "megatron/tensor/memory.h"

namespace megatron::ops {

// The bounds of an H200: the memory bandwidth of a copy, counting bytes read and written, and the
// throughput of the matrix units by the data sheet, in bf16.
inline constexpr double kMemoryBytesPerSecond = 4.3e12, kMatrixOperationsPerSecond = 989e12;
// The shares of these bounds that are required of kernels that only move memory
// (docs/performance.md).
inline constexpr double kMemoryFloor = 0.85, kNormBackwardFloor = 0.75;

inline constexpr int64_t kTokens = 8 * 2048, kHidden = 1024, kFfn = 4 * kHidden, kVocab = 50304;
inline constexpr DType kBf16 = DType::kBFloat16, kFp32 = DType::kFloat32;
inline constexpr int kLaunches = 20;  // timed at once, so that events and launches cost nothing
// Operands in turn are so large together that the device's cache, of 60 MB on an H200, holds none
// of them when it is used again.
inline constexpr double kBytesInTurn = 150e6;

// Tensors on the device, filled with normal values or with given integers.
class Gpu {
 public:
  Tensor Normal(const Shape& shape, DType dtype) {
    const Tensor out = Allocate(dtype, shape);
    const Tensor all = out.Flatten();
    // Each tensor repeats a block of values of its own: drawing and sending them all would take
    // longer than the measurement.
    const int64_t count = shape.numel(), block = std::min(count, kDrawn / 2);
    const auto first = static_cast<int64_t>(buffers_.size()) * 4093 % (kDrawn / 2);
    Buffer scratch(device(), block * SizeOf(kFp32), "values", nullptr);
    const Tensor values = scratch.At(0, kFp32, {block});
    CopyOnCuda(&stream_, Tensor(Drawn() + first, kFp32, {block}), values);
    Copy(stream(), values, all.Slice(0, 0, block));
    for (int64_t filled = block; filled < count; filled *= 2) {
      const int64_t size = std::min(filled, count - filled);
      Copy(stream(), all.Slice(0, 0, size), all.Slice(0, filled, filled + size));
    }
    stream_.Synchronize();
    return out;
  }
  template <typename T>
  Tensor Of(std::vector<T> values, DType dtype) {
    const Shape shape = {static_cast<int64_t>(values.size())};
    const Tensor out = Allocate(dtype, shape);
    CopyOnCuda(&stream_, Tensor(values.data(), dtype, shape), out);
    return out;
  }
  Tensor Ids(int64_t below) {
    std::vector<int32_t> ids(kTokens);
    for (int64_t t = 0; t < kTokens; ++t) {
      ids[t] = static_cast<int32_t>(Philox({3, 4}, {{static_cast<uint32_t>(t), 0, 0, 0}}).word[0] %
                                    static_cast<uint64_t>(below));
    }
    return Of(std::move(ids), DType::kInt32);
  }
  Tensor Allocate(DType dtype, const Shape& shape) {
    buffers_.emplace_back(device(), shape.numel() * SizeOf(dtype), "benchmark", nullptr);
    return buffers_.back().At(0, dtype, shape);
  }
  Stream stream() { return Stream::Cuda(0, &stream_); }
  CudaStream* cuda() { return &stream_; }
  void Synchronize() { stream_.Synchronize(); }

 private:
  static constexpr int64_t kDrawn = 1 << 20;

  // Returns kDrawn normal values, which are drawn once.
  static float* Drawn() {
    static std::vector<float>& values = *[] {
      auto* const drawn = new std::vector<float>(kDrawn);
      FillNormal({0, 1}, 0, kDrawn, drawn->data());
      return drawn;
    }();
    return values.data();
  }
  static Device device() { return {DeviceType::kCuda, 0}; }
  CudaStream stream_{0};
  std::vector<Buffer> buffers_;
};

// Returns whether there is a device; if not, skips the benchmark with a message.
inline bool HasGpu(benchmark::State& state) {
  if (CudaDeviceCount() > 0) return true;
  state.SkipWithError("no GPU");
  return false;
}

// The work of one run of an op: bytes, each operand counted once, and operations. `floor` is the
// share of the roofline that is required of kernels without operations.
struct Work {
  double bytes = 0, operations = 0;
  double floor = kMemoryFloor;
};

// Measures an op. `make` takes operands from the device and returns the op on them; it is called
// for as many operands as are used in turn. The benchmark is registered with UseManualTime().
inline void Measure(benchmark::State& state, const Work& work,
                    const std::function<std::function<void()>(Gpu& gpu)>& make) {
  if (!HasGpu(state)) return;
  Gpu gpu;
  std::vector<std::function<void()>> ops;
  const auto in_turn = static_cast<size_t>(std::ceil(kBytesInTurn / work.bytes));
  while (ops.size() < std::min(in_turn, size_t{kLaunches})) ops.push_back(make(gpu));
  for (const auto& op : ops) op();  // loads the kernels
  CudaEvent begin(0, /*timed=*/true), end(0, /*timed=*/true);
  while (state.KeepRunningBatch(kLaunches)) {
    ops.back()();  // the device is busy until the host has enqueued what follows
    begin.Record(*gpu.cuda());
    for (size_t i = 0; i < kLaunches; ++i) ops[i % ops.size()]();
    end.Record(*gpu.cuda());
    end.Wait();
    state.SetIterationTime(static_cast<double>(CudaEvent::Nanoseconds(begin, end)) * 1e-9);
  }
  using benchmark::Counter;
  const auto flags = static_cast<Counter::Flags>(Counter::kIsIterationInvariantRate);
  const double least_seconds =
      std::max(work.bytes / kMemoryBytesPerSecond, work.operations / kMatrixOperationsPerSecond);
  state.counters["GB/s"] = Counter(work.bytes / 1e9, flags);
  if (work.operations > 0) state.counters["TFLOP/s"] = Counter(work.operations / 1e12, flags);
  state.counters["roofline"] = Counter(least_seconds, flags);
  if (work.operations == 0) state.counters["floor"] = work.floor;
}

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_CUDA_GPU_BENCHMARK_H_
