// CUB's sort of pairs for the emulation: see ../../cuda_runtime.h.
#ifndef MEGATRON_OPS_CUDA_EMULATION_INCLUDE_CUB_DEVICE_DEVICE_RADIX_SORT_CUH_
#define MEGATRON_OPS_CUDA_EMULATION_INCLUDE_CUB_DEVICE_DEVICE_RADIX_SORT_CUH_

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

#include "cuda_runtime.h"

namespace cub {

struct DeviceRadixSort {
  // The sort is stable, like CUB's. Without scratch memory it returns how much it needs.
  template <typename Key, typename Value>
  static cudaError_t SortPairs(void* scratch, size_t& scratch_bytes, const Key* keys,
                               Key* sorted_keys, const Value* values, Value* sorted_values,
                               int count, int, int, cudaStream_t) {
    if (scratch == nullptr) {
      scratch_bytes = 1;
      return cudaSuccess;
    }
    std::vector<int> order(static_cast<size_t>(count));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return keys[a] < keys[b]; });
    for (int i = 0; i < count; ++i) {
      sorted_keys[i] = keys[order[i]];
      sorted_values[i] = values[order[i]];
    }
    return cudaSuccess;
  }
};

}  // namespace cub

#endif  // MEGATRON_OPS_CUDA_EMULATION_INCLUDE_CUB_DEVICE_DEVICE_RADIX_SORT_CUH_
