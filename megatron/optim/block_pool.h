// Memory for what is whole for a while only: weights that were gathered, gradients that will be
// reduced. The first gap that is large enough is taken, so equal calls give equal places: on the
// meta device the pool measures what a real one needs.
#ifndef MEGATRON_OPTIM_BLOCK_POOL_H_
#define MEGATRON_OPTIM_BLOCK_POOL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "megatron/tensor/memory.h"

namespace megatron {

// A piece of a pool; of an empty tensor where it is none.
struct PooledTensor {
  Tensor tensor;
  int64_t begin = 0;
};

class BlockPool {
 public:
  // Of `capacity` bytes; on the meta device that is ignored.
  BlockPool(Device device, int64_t capacity, const std::string& name, MemoryLedger* ledger);

  // Flat; contents are undefined.
  PooledTensor Allocate(DType dtype, int64_t elements);
  // Takes the piece back, if it is one, and makes it none.
  void Free(PooledTensor* piece);

  // The end of the last byte that was ever in use.
  int64_t high_water() const { return high_water_; }
  bool empty() const { return live_.empty(); }

 private:
  struct Range {
    int64_t begin, end;
  };

  Device device_;
  Buffer buffer_;
  std::vector<Range> live_;  // by begin
  int64_t high_water_ = 0;
};

}  // namespace megatron

#endif  // MEGATRON_OPTIM_BLOCK_POOL_H_
