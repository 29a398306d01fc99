// Parts that the kernels of this folder share: dtypes on the device, vector loads, sums over a warp
// and a block, launches.
#ifndef MEGATRON_OPS_CUDA_DEVICE_CUH_
#define MEGATRON_OPS_CUDA_DEVICE_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "glog/logging.h"
#include "megatron/tensor/cuda_device.h"
#include "megatron/tensor/dtype.h"
#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron::ops::cuda {

constexpr int kWarp = 32;
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kVectorBytes = 16;

__device__ inline float ToFloat(float x) { return x; }
__device__ inline float ToFloat(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline float ToFloat(__half x) { return __half2float(x); }

template <typename T>
__device__ T FromFloat(float x);
template <>
__device__ inline float FromFloat<float>(float x) {
  return x;
}
template <>
__device__ inline __nv_bfloat16 FromFloat<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ inline __half FromFloat<__half>(float x) {
  return __float2half_rn(x);
}

// exp(x) and x / y for results in T. Where those have 16 bits, the device's fast forms do: their
// errors are far below a rounding (docs/numerics.md).
template <typename T>
__device__ float Exp(float x) {
  if constexpr (sizeof(T) == 2) {
    return __expf(x);
  } else {
    return expf(x);
  }
}
template <typename T>
__device__ float Quotient(float x, float y) {
  if constexpr (sizeof(T) == 2) {
    return __fdividef(x, y);
  } else {
    return x / y;
  }
}

// The elements that one thread loads or stores at once.
template <typename T, int N>
struct alignas(sizeof(T) * N) Vector {
  T values[N];
};

template <typename T, int N>
__device__ Vector<T, N> Load(const T* row, int64_t i) {
  return reinterpret_cast<const Vector<T, N>*>(row)[i];
}

template <typename T, int N>
__device__ void Store(T* row, int64_t i, const Vector<T, N>& vector) {
  reinterpret_cast<Vector<T, N>*>(row)[i] = vector;
}

template <typename T>
constexpr int kVector = kVectorBytes / static_cast<int>(sizeof(T));

template <typename X>
__device__ X WarpSum(X x) {
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) x += __shfl_xor_sync(0xffffffffu, x, lanes);
  return x;
}

__device__ inline float WarpMax(float x) {
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, lanes));
  }
  return x;
}

// The sum over a block of kThreads, for every thread. `partial` is shared memory of kWarps.
template <typename X>
__device__ X BlockSum(X x, X* partial) {
  x = WarpSum(x);
  __syncthreads();  // the previous contents have been read
  if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = x;
  __syncthreads();
  X sum = 0;
  for (int warp = 0; warp < kWarps; ++warp) sum += partial[warp];
  return sum;
}

__device__ inline float BlockMax(float x, float* partial) {
  x = WarpMax(x);
  __syncthreads();
  if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = x;
  __syncthreads();
  float max = partial[0];
  for (int warp = 1; warp < kWarps; ++warp) max = fmaxf(max, partial[warp]);
  return max;
}

// Calls body with a null pointer of the device's type for the dtype.
template <typename Body>
void WithType(DType dtype, Body body) {
  switch (dtype) {
    case DType::kFloat32:
      return body(static_cast<float*>(nullptr));
    case DType::kBFloat16:
      return body(static_cast<__nv_bfloat16*>(nullptr));
    case DType::kFloat16:
      return body(static_cast<__half*>(nullptr));
    default:
      LOG(FATAL) << "no kernel for " << Name(dtype);
  }
}

// Returns raw() as a pointer to the type that `type` points to.
template <typename T>
T* As(T* type, const Tensor& tensor) {
  return static_cast<T*>(tensor.raw());
}

inline cudaStream_t Handle(const Stream& stream) {
  return static_cast<cudaStream_t>(stream.cuda()->handle());
}

inline unsigned Blocks(int64_t count, int64_t per_block) {
  const int64_t blocks = (count + per_block - 1) / per_block;
  CHECK_LE(blocks, int64_t{0x7fffffff});
  return static_cast<unsigned>(blocks);
}

// Returns the last of `count` entries, in ascending order of first_tile, that begins at or before
// the tile.
template <typename Entry>
__device__ const Entry& EntryOf(const Entry* entries, int count, int64_t tile) {
  int low = 0, high = count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (entries[middle].first_tile <= tile ? low : high) = middle;
  }
  return entries[low];
}

inline bool IsAligned(std::initializer_list<const void*> pointers) {
  for (const void* pointer : pointers) {
    if (reinterpret_cast<uintptr_t>(pointer) % kVectorBytes != 0) return false;
  }
  return true;
}

inline void CheckLaunched(const char* kernel) {
  const cudaError_t error = cudaGetLastError();
  CHECK_EQ(error, cudaSuccess) << kernel << ": " << cudaGetErrorString(error);
}

}  // namespace megatron::ops::cuda

#endif  // MEGATRON_OPS_CUDA_DEVICE_CUH_
