// Memory for tensors that are whole for a while only: weights that were gathered and gradients that
// will be reduced. Allocate takes the first gap that is large enough, so equal calls give equal
// positions: on the meta device the pool measures what a real one needs.
#ifndef MEGATRON_OPTIM_BLOCK_POOL_H_
#define MEGATRON_OPTIM_BLOCK_POOL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "megatron/tensor/memory.h"

namespace megatron {

// A tensor in a pool's memory; empty when it holds none.
struct PooledTensor {
  Tensor tensor;
  int64_t begin = 0;  // byte offset in the pool
};

class BlockPool {
 public:
  // A pool of `capacity` bytes, which is ignored on the meta device.
  BlockPool(Device device, int64_t capacity, const std::string& name, MemoryLedger* ledger);

  // Returns a flat tensor of undefined contents.
  PooledTensor Allocate(DType dtype, int64_t elements);
  // Gives the memory back and empties the tensor. An empty one is left as it is.
  void Free(PooledTensor* pooled);

  // The end of the last byte that was ever in use.
  int64_t high_water() const { return high_water_; }
  bool empty() const { return live_.empty(); }

 private:
  struct Range {
    int64_t begin, end;
  };

  Device device_;
  Buffer buffer_;
  std::vector<Range> live_;  // ascending by begin
  int64_t high_water_ = 0;
};

}  // namespace megatron

#endif  // MEGATRON_OPTIM_BLOCK_POOL_H_
