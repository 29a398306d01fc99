#include "megatron/ops/cpu/fma_peak.h"

#include <chrono>
#include <cmath>
#include <cstdint>

#include "glog/logging.h"
#include "megatron/ops/cpu/fma_peak_kernels.h"
#include "megatron/ops/cpu/isa.h"

namespace megatron::ops {

namespace {

const FmaPeakKernels& Kernels(DType dtype) {
  if (dtype == DType::kBFloat16) {
    switch (ActiveBf16Products()) {
      case Bf16Products::kAvx512Bf16:
        return avx512_bf16::kFmaPeakKernels;
      case Bf16Products::kAmx:
        return amx_bf16::kFmaPeakKernels;
      case Bf16Products::kWidened:
        break;
    }
  }
  return ActiveIsa() == CpuIsa::kAvx512 ? avx512::kFmaPeakKernels : avx2::kFmaPeakKernels;
}

}  // namespace

double MeasureFmaPeak(ThreadPool* pool, DType dtype) {
  const FmaPeakKernels& kernels = Kernels(dtype);
  const int64_t threads = pool->num_threads();
  const auto start = std::chrono::steady_clock::now();
  pool->ParallelFor(threads, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      float results[16];
      kernels.run(kernels.rounds, results);
      CHECK(std::isfinite(results[0]));  // uses the results, so that they are computed
    }
  });
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return static_cast<double>(threads * kernels.rounds * kernels.flops_per_round) / seconds;
}

}  // namespace megatron::ops
