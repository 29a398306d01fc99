#include "megatron/optim/block_pool.h"

#include <algorithm>

#include "glog/logging.h"

namespace megatron {

BlockPool::BlockPool(Device device, int64_t capacity, const std::string& name, MemoryLedger* ledger)
    : device_(device),
      buffer_(device, device.type == DeviceType::kMeta ? 0 : capacity, name, ledger) {}

PooledTensor BlockPool::Allocate(DType dtype, int64_t elements) {
  const int64_t bytes =
      (elements * SizeOf(dtype) + Buffer::kAlignment - 1) / Buffer::kAlignment * Buffer::kAlignment;
  int64_t begin = 0;
  auto next = live_.begin();
  for (; next != live_.end() && next->begin - begin < bytes; ++next) begin = next->end;
  live_.insert(next, {begin, begin + bytes});
  high_water_ = std::max(high_water_, begin + bytes);
  if (device_.type == DeviceType::kMeta)
    return {Tensor(nullptr, dtype, {elements}, device_), begin};
  return {buffer_.At(begin, dtype, {elements}), begin};
}

void BlockPool::Free(PooledTensor* pooled) {
  if (pooled->tensor.empty()) return;
  const auto found = std::find_if(live_.begin(), live_.end(),
                                  [&](const Range& range) { return range.begin == pooled->begin; });
  CHECK(found != live_.end()) << pooled->begin;
  live_.erase(found);
  *pooled = {};
}

}  // namespace megatron
