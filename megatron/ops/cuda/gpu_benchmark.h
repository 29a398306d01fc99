// Shared by the benchmarks of ops on a GPU: random operands on the device, and the rate as a share
// of the hardware's.
//
// Counters of a row: `GB/s`, `TFLOP/s`, `roofline` (the share of the bandwidth of the memory or of
// the throughput of the matrix units, whichever bounds it), and `floor`, the share that is
// required. tools/gpu_check prints them as a table; it takes `share` or `plan` in place of
// `roofline` if a row has them.
#ifndef MEGATRON_OPS_CUDA_GPU_BENCHMARK_H_
#define MEGATRON_OPS_CUDA_GPU_BENCHMARK_H_

#include <algorithm>
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
inline constexpr DType kBf16 = DType::kBFloat16, kF32 = DType::kFloat32;
inline constexpr int kLaunches = 10;  // enqueued at once, so that their launches cost nothing

// Tensors on the device, filled with normal values or with given integers.
class Gpu {
 public:
  Tensor Normal(const Shape& shape, DType dtype) {
    const Tensor out = Allocate(dtype, shape);
    // Repeats a block of values: drawing them all would take longer than the measurement.
    std::vector<float> block(1 << 20);
    FillNormal({static_cast<uint32_t>(buffers_.size()), 1}, 0, 1 << 20, block.data());
    const int64_t count = shape.numel();
    Buffer scratch(device(), int64_t{4} << 20, "values", nullptr);
    for (int64_t begin = 0; begin < count; begin += 1 << 20) {
      const int64_t size = std::min<int64_t>(1 << 20, count - begin);
      const Tensor values = scratch.At(0, kF32, {size});
      CopyOnCuda(&stream_, Tensor(block.data(), kF32, {size}), values);
      Copy(stream(), values, out.Flatten().Slice(0, begin, begin + size));
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
  static Device device() { return {DeviceType::kCuda, 0}; }
  CudaStream stream_{0};
  std::vector<Buffer> buffers_;
};

// Counts each operand once. `floor` is the required share of the roofline for kernels without
// operations.
inline void Measure(benchmark::State& state, Gpu* gpu, double bytes, double operations,
                    const std::function<void()>& op, double floor = kMemoryFloor) {
  op();
  gpu->Synchronize();
  for (auto _ : state) {
    for (int i = 0; i < kLaunches; ++i) op();
    gpu->Synchronize();
  }
  using benchmark::Counter;
  const auto flags = static_cast<Counter::Flags>(Counter::kIsIterationInvariantRate);
  const double least_seconds =
      std::max(bytes / kMemoryBytesPerSecond, operations / kMatrixOperationsPerSecond);
  state.counters["GB/s"] = Counter(kLaunches * bytes / 1e9, flags);
  if (operations > 0) state.counters["TFLOP/s"] = Counter(kLaunches * operations / 1e12, flags);
  state.counters["roofline"] = Counter(kLaunches * least_seconds, flags);
  if (operations == 0) state.counters["floor"] = floor;
}

// Whether there is a device; if not, skips the benchmark with a message.
inline bool HasGpu(benchmark::State& state) {
  if (CudaDeviceCount() > 0) return true;
  state.SkipWithError("no GPU");
  return false;
}

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_CUDA_GPU_BENCHMARK_H_
