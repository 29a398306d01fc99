// Dynamic shared memory of kernels that need more than a kernel has without asking.
#ifndef MEGATRON_OPS_CUDA_DYNAMIC_SHARED_CUH_
#define MEGATRON_OPS_CUDA_DYNAMIC_SHARED_CUH_

#include <cuda_runtime.h>

#include <cstddef>
#include <map>
#include <mutex>
#include <utility>

#include "glog/logging.h"

namespace megatron::ops::cuda {

// Returns the device of the calling thread.
#ifdef MEGATRON_EMULATED_CUDA
inline int CurrentDevice() { return 0; }
#else
inline int CurrentDevice() {
  int device;
  CHECK_EQ(cudaGetDevice(&device), cudaSuccess);
  return device;
}
#endif

// Lets launches of the kernel on the current device have that many bytes, or as many as an earlier
// call allowed if those are more: another thread may be about to launch the kernel with them.
// Returns an error if the device has less.
//
// Threads: any.
template <typename Kernel>
cudaError_t AllowDynamicShared(Kernel* kernel, size_t bytes) {
  static std::mutex* const mutex = new std::mutex;
  static auto* const allowed = new std::map<std::pair<int, Kernel*>, size_t>;
  std::lock_guard<std::mutex> lock(*mutex);
  size_t& most = (*allowed)[{CurrentDevice(), kernel}];
  if (bytes <= most) return cudaSuccess;
  const cudaError_t error = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (error == cudaSuccess) most = bytes;
  return error;
}

}  // namespace megatron::ops::cuda

#endif  // MEGATRON_OPS_CUDA_DYNAMIC_SHARED_CUH_
