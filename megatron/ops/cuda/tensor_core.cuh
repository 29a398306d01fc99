// Products of small matrices by the tensor cores of a warp: mma.sync m16n8k16 with fp32 sums, and
// the loads that bring its operands from shared memory (PTX ISA, "Warp-level matrix instructions").
//
// The layout, with g = lane / 4 and t = lane % 4:
// - Sums (16 x 8): a lane has c[0], c[1] in row g and c[2], c[3] in row g + 8, in columns 2 t and 2
// t + 1.
// - Left operand (16 x 16): a register has two neighbours of a row. a[0] is in row g and a[1] in
// row g + 8, both in columns 2 t and 2 t + 1; a[2] and a[3] are the same 8 columns further.
// - Right operand (16 x 8): b[0] has rows 2 t and 2 t + 1 of column g; b[1] has those 8 rows
// further.
// So the rounded sums of two tiles side by side are a left operand.
#ifndef MEGATRON_OPS_CUDA_TENSOR_CORE_CUH_
#define MEGATRON_OPS_CUDA_TENSOR_CORE_CUH_

#include <cstdint>
#include <type_traits>

#include "megatron/ops/cuda/device.cuh"
#ifdef MEGATRON_EMULATED_CUDA
#include "megatron/ops/cuda/emulation/tensor_core.h"
#endif

namespace megatron::ops::cuda {

// Rounds two floats into one register; `first` is in the lower half.
template <typename T>
__device__ uint32_t PackPair(float first, float second) {
  const Vector<T, 2> pair = {{FromFloat<T>(first), FromFloat<T>(second)}};
  uint32_t bits;
  memcpy(&bits, &pair, sizeof(bits));
  return bits;
}

// Reductions over the four lanes that share rows of sums.
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

// Loads four 8 x 8 matrices of 16-bit elements. Lanes 8 i to 8 i + 7 pass the addresses of the rows
// of matrix i (16-byte aligned, in shared memory). r[i] receives row g, columns 2 t and 2 t + 1 of
// matrix i.
template <typename T>
__device__ void LoadMatrices(const T* row, uint32_t (&r)[4]) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// r[i] receives column g, rows 2 t and 2 t + 1 of matrix i.
template <typename T>
__device__ void LoadMatricesTransposed(const T* row, uint32_t (&r)[4]) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// Copies 16 bytes to shared memory asynchronously; zeros if not `there`. Both addresses are
// aligned.
__device__ inline void CopyAsync(void* shared, const void* global, bool there) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(global),
               "r"(there ? 16 : 0)
               : "memory");
}
// Makes the thread's copies since the last call a group.
__device__ inline void CommitCopies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until all but the last kPending groups of the thread's copies have arrived.
template <int kPending>
__device__ void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}
#endif

}  // namespace megatron::ops::cuda

#endif  // MEGATRON_OPS_CUDA_TENSOR_CORE_CUH_
