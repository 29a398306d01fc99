// Products of small matrices by the tensor cores of a warp: mma.sync m16n8k16 with fp32 sums, and
// the loads that bring its operands from shared memory (PTX ISA, "Warp-level matrix instructions").
//
// Who holds what, with g = lane / 4 and t = lane % 4: of the 16 x 8 sums a lane has c[0], c[1] in
// row g and c[2], c[3] in row g + 8, in columns 2 t and 2 t + 1. Of the left operand (16 x 16) a
// register has two neighbours of a row: a[0] row g, a[1] row g + 8, both columns 2 t, and a[2],
// a[3] the same 8 columns further. Of the right one (16 x 8) b[0] has rows 2 t, 2 t + 1 of column
// g, b[1] those 8 rows further. So sums of two tiles side by side are a left operand after
// rounding.
#ifndef MEGATRON_OPS_CUDA_TENSOR_CORE_CUH_
#define MEGATRON_OPS_CUDA_TENSOR_CORE_CUH_

#include <cstdint>
#include <type_traits>

#include "megatron/ops/cuda/device.cuh"
#ifdef MEGATRON_EMULATED_CUDA
#include "megatron/ops/cuda/emulation/tensor_core.h"
#endif

namespace megatron::ops::cuda {

// Two floats, rounded, in one register; `first` in the lower half.
template <typename T>
__device__ uint32_t PackPair(float first, float second) {
  const Vector<T, 2> pair = {{FromFloat<T>(first), FromFloat<T>(second)}};
  uint32_t bits;
  memcpy(&bits, &pair, sizeof(bits));
  return bits;
}

// Over the four lanes that share rows of sums.
__device__ inline float QuadMax(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
__device__ inline float QuadSum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

#ifdef MEGATRON_EMULATED_CUDA

template <typename T>
void MultiplyAdd(const uint32_t (&a)[4], uint32_t b0, uint32_t b1, float (&c)[4]) {
  emulation::MultiplyAdd(a, b0, b1, c, [](const void* at) {
    T value;
    memcpy(&value, at, sizeof(value));
    return ToFloat(value);
  });
}
template <typename T>
void LoadMatrices(const T* row, uint32_t (&r)[4]) {
  emulation::LoadMatrices(row, r);
}
template <typename T>
void LoadMatricesTransposed(const T* row, uint32_t (&r)[4]) {
  emulation::LoadMatricesTransposed(row, r);
}
inline void CopyAsync(void* shared, const void* global, bool there) {
  emulation::CopyAsync(shared, global, there);
}
inline void CommitCopies() { emulation::CommitCopies(); }
template <int kPending>
void WaitForCopies() {
  emulation::WaitForCopies(kPending);
}
#else

// c += a b.
template <typename T>
__device__ void MultiplyAdd(const uint32_t (&a)[4], uint32_t b0, uint32_t b1, float (&c)[4]) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// Four 8 x 8 matrices of 16-bit elements. Lanes 8 i to 8 i + 7 give the addresses of matrix i's
// rows (16-byte aligned, in shared memory); r[i] gets of matrix i row g, columns 2 t and 2 t + 1.
template <typename T>
__device__ void LoadMatrices(const T* row, uint32_t (&r)[4]) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// r[i] gets of matrix i column g, rows 2 t and 2 t + 1.
template <typename T>
__device__ void LoadMatricesTransposed(const T* row, uint32_t (&r)[4]) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// 16 bytes to shared memory in the background, zeros unless they are `there`. Both addresses are
// aligned.
__device__ inline void CopyAsync(void* shared, const void* global, bool there) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(global),
               "r"(there ? 16 : 0)
               : "memory");
}
// The thread's copies since the last call are a group.
__device__ inline void CommitCopies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until all the thread's groups but the last kPending have come.
template <int kPending>
__device__ void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}
#endif

}  // namespace megatron::ops::cuda

#endif  // MEGATRON_OPS_CUDA_TENSOR_CORE_CUH_
