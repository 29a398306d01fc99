// Multiplications and sums in registers alone: the most arithmetic that a core can do.
#ifndef MEGATRON_OPS_CPU_FMA_PEAK_KERNELS_H_
#define MEGATRON_OPS_CPU_FMA_PEAK_KERNELS_H_

#include <cstdint>

namespace megatron::ops {

struct FmaPeakKernels {
  int64_t flops_per_round;
  int64_t rounds;  // rounds that take about a millisecond
  // Does so many rounds and writes 16 numbers that depend on all of them.
  void (*run)(int64_t rounds, float* out);
};

namespace avx2 {
extern const FmaPeakKernels kFmaPeakKernels;
}
namespace avx512 {
extern const FmaPeakKernels kFmaPeakKernels;
}
// These are of bf16 products.
namespace avx512_bf16 {
extern const FmaPeakKernels kFmaPeakKernels;
}
namespace amx_bf16 {
extern const FmaPeakKernels kFmaPeakKernels;
}

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_CPU_FMA_PEAK_KERNELS_H_
