#include "megatron/ops/cpu/fma_peak_kernels.h"

#include "megatron/ops/cpu/vec.h"

namespace megatron::ops::MEGATRON_ISA {
namespace {

// Sums that do not wait for each other. Processors start two fused multiply-adds a cycle, each of
// which takes four or five cycles.
constexpr int kSums = 12;

void Run(int64_t rounds, float* out) {
  Vec sums[kSums];
#pragma GCC unroll 16
  for (int i = 0; i < kSums; ++i) sums[i] = Set(static_cast<float>(i));
  // The sums converge to 1, so that no number overflows or is denormal.
  const Vec half = Set(0.5f);
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 16
    for (int i = 0; i < kSums; ++i) sums[i] = Fma(sums[i], half, half);
  }
  Vec all = sums[0];
#pragma GCC unroll 16
  for (int i = 1; i < kSums; ++i) all = all + sums[i];
  for (int lane = 0; lane < 16; lane += kLanes) Store(out + lane, all);
}

}  // namespace

const FmaPeakKernels kFmaPeakKernels = {2 * kSums * kLanes, Run};

}  // namespace megatron::ops::MEGATRON_ISA
