// CUB's scan over a block for the emulation: see ../../cuda_runtime.h.
#ifndef MEGATRON_OPS_CUDA_EMULATION_INCLUDE_CUB_BLOCK_BLOCK_SCAN_CUH_
#define MEGATRON_OPS_CUDA_EMULATION_INCLUDE_CUB_BLOCK_BLOCK_SCAN_CUH_

#include "cuda_runtime.h"

namespace cub {

// Like CUB, it leaves it to the caller to synchronize before the storage is used again.
template <typename T, int kBlockThreads>
class BlockScan {
 public:
  struct TempStorage {
    T values[kBlockThreads];
  };

  explicit BlockScan(TempStorage& storage) : storage_(storage) {}

  void ExclusiveSum(T value, T& before, T& total) {
    storage_.values[threadIdx.x] = value;
    __syncthreads();
    before = total = 0;
    for (unsigned t = 0; t < kBlockThreads; ++t) {
      if (t < threadIdx.x) before += storage_.values[t];
      total += storage_.values[t];
    }
  }

 private:
  TempStorage& storage_;
};

}  // namespace cub

#endif  // MEGATRON_OPS_CUDA_EMULATION_INCLUDE_CUB_BLOCK_BLOCK_SCAN_CUH_
