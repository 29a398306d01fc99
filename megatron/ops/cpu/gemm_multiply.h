// The inner kernels of the matrix product: a panel of A times a panel of B (gemm_pack.h), which is
// a *tile*, an array of [kPanelRows][kPanelColumns] floats.
//
// Only sources of gemm_kernels include it (see vec.h).
#ifndef MEGATRON_OPS_CPU_GEMM_MULTIPLY_H_
#define MEGATRON_OPS_CPU_GEMM_MULTIPLY_H_

#include "megatron/ops/cpu/gemm_pack.h"
#if defined(MEGATRON_ISA_BF16_PRODUCTS)
#include "megatron/ops/cpu/bf16_vec.h"
#endif

namespace megatron::ops::MEGATRON_ISA {

constexpr int kTileFloats = kPanelRows * kPanelColumns;

// Multiplies `steps` steps of a panel of A by a panel of B. The tile becomes the product, or has it
// added.
using MultiplyFunction = void (*)(int64_t steps, const float* a, const float* b, bool add,
                                  float* tile);

#if defined(MEGATRON_ISA_AMX)

// Multiplies 16 rows, or 32 if kTwo. Matrix registers 0 to 3 are sums, 4 and 5 are of A, 6 and 7
// are of B.
template <bool kTwo>
void MultiplyRows(int64_t steps, const float* a, const float* b, bool add, float* tile) {
  constexpr int kStrideA = kLongStride * sizeof(float), kStrideB = kPanelColumns * sizeof(float);
  constexpr int kSecondA = 16 * kLongStride, kSecondTile = 16 * kPanelColumns;
  static_assert(kPanelColumns == 32 && kPanelRows == 32 && kStepMultiple == 16, "");
  FinishStores();
  _tile_zero(0);
  _tile_zero(1);
  if (kTwo) {
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t k = 0; k < steps; k += 16) {
    _tile_loadd(6, b, kStrideB);
    _tile_loadd(4, a, kStrideA);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, b + 16, kStrideB);
    _tile_dpbf16ps(1, 4, 7);
    if (kTwo) {
      _tile_loadd(5, a + kSecondA, kStrideA);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    a += 16;
    b += 16 * kPanelColumns;
  }
  alignas(64) float product[kTileFloats];
  float* const out = add ? product : tile;
  _tile_stored(0, out, kStrideB);
  _tile_stored(1, out + 16, kStrideB);
  if (kTwo) {
    _tile_stored(2, out + kSecondTile, kStrideB);
    _tile_stored(3, out + kSecondTile + 16, kStrideB);
  }
  FinishStores();
  if (!add) return;
  for (int i = 0; i < (kTwo ? 2 : 1) * kSecondTile; i += kLanes) {
    Store(tile + i, Load(tile + i) + Load(product + i));
  }
}

MEGATRON_INLINE MultiplyFunction MultiplyFor(int64_t rows, bool /*long_panel*/) {
  return rows > 16 ? MultiplyRows<true> : MultiplyRows<false>;
}

#else

#if defined(MEGATRON_ISA_BF16_PRODUCTS)
MEGATRON_INLINE Vec MultiplyAdd(Vec a, Vec b, Vec c) { return PairFma(a, b, c); }
#else
MEGATRON_INLINE Vec MultiplyAdd(Vec a, Vec b, Vec c) { return Fma(a, b, c); }
#endif

// Number of steps by which the panel of B is fetched ahead.
constexpr int kPrefetchSteps = 16;

template <int kRows, int kRowStride, int kStepStride>
void MultiplyRows(int64_t steps, const float* a, const float* b, bool add, float* tile) {
  Vec sums[kRows][kPanelVecs];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kPanelVecs; ++j) sums[i][j] = Zero();
  }
  for (int64_t k = 0; k < steps; ++k) {
    Vec row[kPanelVecs];
#pragma GCC unroll 4
    for (int j = 0; j < kPanelVecs; ++j) {
      row[j] = Load(b + j * kLanes);
      if (j * kLanes % kLineFloats == 0) {
        __builtin_prefetch(b + j * kLanes + kPrefetchSteps * kPanelColumns);
      }
    }
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const Vec x = Set(a[i * kRowStride]);
#pragma GCC unroll 4
      for (int j = 0; j < kPanelVecs; ++j) sums[i][j] = MultiplyAdd(x, row[j], sums[i][j]);
    }
    a += kStepStride;
    b += kPanelColumns;
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kPanelVecs; ++j) {
      float* out = tile + i * kPanelColumns + j * kLanes;
      Store(out, add ? Load(out) + sums[i][j] : sums[i][j]);
    }
  }
}

// The inner kernels, by number of rows.
template <int kRowStride, int kStepStride>
struct Multiplies {
  static constexpr MultiplyFunction kFunctions[kPanelRows + 1] = {
      nullptr,
      MultiplyRows<1, kRowStride, kStepStride>,
      MultiplyRows<2, kRowStride, kStepStride>,
      MultiplyRows<3, kRowStride, kStepStride>,
      MultiplyRows<4, kRowStride, kStepStride>,
      MultiplyRows<5, kRowStride, kStepStride>,
      MultiplyRows<6, kRowStride, kStepStride>,
#if defined(MEGATRON_ISA_AVX512)
      MultiplyRows<7, kRowStride, kStepStride>,
      MultiplyRows<8, kRowStride, kStepStride>,
      MultiplyRows<9, kRowStride, kStepStride>,
      MultiplyRows<10, kRowStride, kStepStride>,
      MultiplyRows<11, kRowStride, kStepStride>,
      MultiplyRows<12, kRowStride, kStepStride>,
      MultiplyRows<13, kRowStride, kStepStride>,
      MultiplyRows<14, kRowStride, kStepStride>,
#endif
  };
};

MEGATRON_INLINE MultiplyFunction MultiplyFor(int64_t rows, bool long_panel) {
  return (long_panel ? Multiplies<kLongStride, 1>::kFunctions
                     : Multiplies<1, kShortStride>::kFunctions)[rows];
}

#endif

}  // namespace megatron::ops::MEGATRON_ISA

#endif  // MEGATRON_OPS_CPU_GEMM_MULTIPLY_H_
