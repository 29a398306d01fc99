#include "megatron/tensor/pinned_buffer.h"

#include "megatron/base/status_macros.h"
#include "megatron/tensor/cuda_device.h"

namespace megatron {

void PinnedBuffer::Free::operator()(void* memory) const { CudaFreeHost(memory); }

absl::StatusOr<PinnedBuffer> PinnedBuffer::Create(Device device, int64_t bytes,
                                                  const std::string& name, MemoryLedger* ledger) {
  PinnedBuffer buffer;
  const bool locks = device.type == DeviceType::kCuda;
  if (locks && bytes > 0) {
    MEGATRON_ASSIGN_OR_RETURN(void* const memory, CudaAllocateHost(bytes, name));
    buffer.locked_.reset(memory);
  }
  // A buffer of the meta device counts and has no memory.
  buffer.bytes_ = Buffer(locks ? Device{DeviceType::kMeta} : device, bytes, name, ledger);
  return buffer;
}

Tensor PinnedBuffer::At(int64_t offset, DType dtype, const Shape& shape) const {
  const Tensor tensor = bytes_.At(offset, dtype, shape);
  if (locked_ == nullptr) return tensor;
  return tensor.Moved(static_cast<char*>(locked_.get()) + offset, Device());
}

}  // namespace megatron
