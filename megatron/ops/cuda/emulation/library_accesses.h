// The bytes of device memory that a library's kernel accesses besides a product's operands and
// result, for those who count the accesses of kernels: a library's code is not instrumented.
#ifndef MEGATRON_OPS_CUDA_EMULATION_LIBRARY_ACCESSES_H_
#define MEGATRON_OPS_CUDA_EMULATION_LIBRARY_ACCESSES_H_

#include <cstddef>

namespace megatron::emulation {

// Is told of each access; null: nobody.
using LibraryAccessCallback = void (*)(const void* address, size_t bytes, bool writes);
inline LibraryAccessCallback library_access_callback = nullptr;

// Called while the kernel runs (RunLibraryKernel).
inline void NoteLibraryAccess(const void* address, size_t bytes, bool writes) {
  if (library_access_callback != nullptr) library_access_callback(address, bytes, writes);
}

}  // namespace megatron::emulation

#endif  // MEGATRON_OPS_CUDA_EMULATION_LIBRARY_ACCESSES_H_
