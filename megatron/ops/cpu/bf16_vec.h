// The processor's own products of bf16: vectors whose lanes are pairs of bf16, and AMX's matrix
// registers.
//
// Only sources of cpu_kernel_library for avx512_bf16 and amx_bf16 include it (see vec.h).
#ifndef MEGATRON_OPS_CPU_BF16_VEC_H_
#define MEGATRON_OPS_CPU_BF16_VEC_H_

#include "megatron/ops/cpu/vec.h"

namespace megatron::ops::MEGATRON_ISA {

#if defined(MEGATRON_ISA_AMX)

// Makes the compiler store what it holds; it does not know that loads of matrix registers and of
// their shapes read memory.
MEGATRON_INLINE void FinishStores() { __asm__ volatile("" ::: "memory"); }

// While it lives, the thread's eight matrix registers have 16 rows of 64 bytes: [16][16] floats of
// sums, or 16 rows of 16 pairs.
class MatrixRegisters {
 public:
  MEGATRON_INLINE_MEMBER MatrixRegisters() {
    struct alignas(64) {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } shapes;
    __asm__ volatile("" : : "r"(&shapes) : "memory");  // as FinishStores()
    _tile_loadconfig(&shapes);
  }
  MEGATRON_INLINE_MEMBER ~MatrixRegisters() { _tile_release(); }
  MatrixRegisters(const MatrixRegisters&) = delete;
  MatrixRegisters& operator=(const MatrixRegisters&) = delete;
};

#else

// c + a b, where a lane's two products are added one after another.
MEGATRON_INLINE Vec PairFma(Vec a, Vec b, Vec c) {
  return {_mm512_dpbf16_ps(c.v, (__m512bh)a.v, (__m512bh)b.v)};
}

#endif

}  // namespace megatron::ops::MEGATRON_ISA

#endif  // MEGATRON_OPS_CPU_BF16_VEC_H_
