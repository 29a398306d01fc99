#include "megatron/ops/cpu/fma_peak_kernels.h"

#include "megatron/ops/cpu/vec.h"
#if defined(MEGATRON_ISA_BF16_PRODUCTS)
#include "megatron/ops/cpu/bf16_vec.h"
#endif

namespace megatron::ops::MEGATRON_ISA {
namespace {

#if defined(MEGATRON_ISA_AMX)

// Four sums do not wait for each other.
void Run(int64_t rounds, float* out) {
  alignas(64) uint16_t ones[512];
  for (uint16_t& one : ones) one = 0x3f80;
  FinishStores();
  const MatrixRegisters registers;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_loadd(4, ones, 64);
  _tile_loadd(5, ones, 64);
  for (int64_t round = 0; round < rounds; ++round) {
    _tile_dpbf16ps(0, 4, 5);
    _tile_dpbf16ps(1, 4, 5);
    _tile_dpbf16ps(2, 4, 5);
    _tile_dpbf16ps(3, 4, 5);
  }
  alignas(64) float sums[256];
  _tile_stored(0, sums, 64);
  for (int lane = 0; lane < 16; lane += kLanes) Store(out + lane, Load(sums + lane));
}
constexpr int64_t kFlopsPerRound = 4 * 2 * 16 * 16 * 32, kRounds = 1 << 15;

#else

// Sums that do not wait for each other. Processors start two fused multiply-adds a cycle, each of
// which takes four or five cycles.
constexpr int kSums = 12;

#if defined(MEGATRON_ISA_BF16_PRODUCTS)
// The pair (1/2, 0) in all lanes: the sums go to infinity slowly, and none gets there.
MEGATRON_INLINE Vec Next(Vec sum) {
  const Vec half = {_mm512_castsi512_ps(_mm512_set1_epi32(0x3f00))};
  return PairFma(half, half, sum);
}
constexpr int64_t kFlopsPerLane = 4;
#else
// The sums converge to 1, so that no number overflows or is denormal.
MEGATRON_INLINE Vec Next(Vec sum) { return Fma(sum, Set(0.5f), Set(0.5f)); }
constexpr int64_t kFlopsPerLane = 2;
#endif

void Run(int64_t rounds, float* out) {
  Vec sums[kSums];
#pragma GCC unroll 16
  for (int i = 0; i < kSums; ++i) sums[i] = Set(static_cast<float>(i));
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 16
    for (int i = 0; i < kSums; ++i) sums[i] = Next(sums[i]);
  }
  Vec all = sums[0];
#pragma GCC unroll 16
  for (int i = 1; i < kSums; ++i) all = all + sums[i];
  for (int lane = 0; lane < 16; lane += kLanes) Store(out + lane, all);
}
constexpr int64_t kFlopsPerRound = kFlopsPerLane * kSums * kLanes, kRounds = 1 << 19;

#endif

}  // namespace

const FmaPeakKernels kFmaPeakKernels = {kFlopsPerRound, kRounds, Run};

}  // namespace megatron::ops::MEGATRON_ISA
