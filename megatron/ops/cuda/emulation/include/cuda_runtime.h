// The part of the CUDA runtime that the kernels of ../.. use, for the emulation (../block.h): their
// sources are compiled as C++ against this header in place of CUDA's.
#ifndef MEGATRON_OPS_CUDA_EMULATION_INCLUDE_CUDA_RUNTIME_H_
#define MEGATRON_OPS_CUDA_EMULATION_INCLUDE_CUDA_RUNTIME_H_

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "glog/logging.h"
#include "megatron/ops/cuda/emulation/block.h"

#define MEGATRON_EMULATED_CUDA
#define __global__
#define __device__
#define __host__
#define __launch_bounds__(...)
#define __grid_constant__
// In .cu files the keyword is rewritten (//bazel:emulated_cuda.bzl).
#define __shared__ static_assert(false, "declare what is __shared__ in a .cu file");

using cudaStream_t = struct CUstream_st*;
enum cudaError_t { cudaSuccess, cudaErrorInvalidValue };
enum cudaMemcpyKind { cudaMemcpyHostToDevice };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };

inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline const char* cudaGetErrorString(cudaError_t) { return "no error"; }
inline cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t) {
  std::memset(memory, value, bytes);
  return cudaSuccess;
}
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                                   cudaStream_t) {
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
template <typename Kernel>
cudaError_t cudaFuncSetAttribute(Kernel* kernel, cudaFuncAttribute, int bytes) {
  using namespace megatron::emulation;
  return AllowShared(Address(kernel), bytes) ? cudaSuccess : cudaErrorInvalidValue;
}

inline void __syncthreads() { megatron::emulation::SyncBlock(); }
inline void __syncwarp() { megatron::emulation::SyncWarp(); }

// The mask must name all lanes; those that have returned take no part.
template <typename X>
X __shfl_sync(unsigned mask, X x, int lane) {
  CHECK_EQ(mask, ~0u);
  return megatron::emulation::FromLane(x, lane);
}
template <typename X>
X __shfl_xor_sync(unsigned mask, X x, int lanes) {
  CHECK_EQ(mask, ~0u);
  return megatron::emulation::FromLane(x, megatron::emulation::Lane() ^ lanes);
}

inline int atomicMax(int* at, int value) {
  int before = __atomic_load_n(at, __ATOMIC_RELAXED);
  while (value > before && !__atomic_compare_exchange_n(at, &before, value, /*weak=*/false,
                                                        __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  return before;
}

inline int __float_as_int(float x) {
  int bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __expf(float x) { return std::exp(x); }
// Hardware multiplies by an approximate reciprocal, which is zero for the largest numbers.
inline float __fdividef(float x, float y) { return std::fabs(y) > 0x1p126f ? x * 0 : x / y; }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }

template <typename A, typename B>
std::common_type_t<A, B> min(A a, B b) {
  return b < a ? b : a;
}
template <typename A, typename B>
std::common_type_t<A, B> max(A a, B b) {
  return a < b ? b : a;
}

#endif  // MEGATRON_OPS_CUDA_EMULATION_INCLUDE_CUDA_RUNTIME_H_
