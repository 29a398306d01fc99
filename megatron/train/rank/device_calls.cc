#include "megatron/train/rank/device_calls.h"

#include <utility>

namespace megatron {

void DeviceCalls::Set(int rank, Lines lines) {
  const std::lock_guard<std::mutex> lock(mutex_);
  lines_[rank] = std::move(lines);
}

std::vector<std::string> DeviceCalls::Of(int rank) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = lines_.find(rank);
  return found == lines_.end() || found->second == nullptr ? std::vector<std::string>()
                                                           : found->second();
}

}  // namespace megatron
