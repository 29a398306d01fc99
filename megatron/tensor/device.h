// The devices on which memory lives and kernels run.
#ifndef MEGATRON_TENSOR_DEVICE_H_
#define MEGATRON_TENSOR_DEVICE_H_

#include <ostream>

namespace megatron {

// kMeta is the device that has no memory: tensors on it have shapes but no data, operations on it
// do nothing. Running a step there measures what the step allocates, which is how memory is planned
// and how a dry run knows it.
enum class DeviceType { kCpu, kCuda, kMeta };

struct Device {
  DeviceType type = DeviceType::kCpu;
  int index = 0;

  friend bool operator==(const Device& a, const Device& b) {
    return a.type == b.type && a.index == b.index;
  }
  friend bool operator!=(const Device& a, const Device& b) { return !(a == b); }
  friend std::ostream& operator<<(std::ostream& out, const Device& device) {
    switch (device.type) {
      case DeviceType::kCpu:
        return out << "cpu";
      case DeviceType::kMeta:
        return out << "meta";
      case DeviceType::kCuda:
        return out << "cuda:" << device.index;
    }
    return out;
  }
};

}  // namespace megatron

#endif  // MEGATRON_TENSOR_DEVICE_H_
