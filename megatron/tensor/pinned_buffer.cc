#include "megatron/tensor/pinned_buffer.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "megatron/tensor/cuda_device.h"

namespace megatron {

void PinnedBuffer::Free::operator()(void* memory) const { CudaFreeHost(memory); }

absl::StatusOr<PinnedBuffer> PinnedBuffer::Create(Device device, int64_t bytes,
                                                  const std::string& name, MemoryLedger* ledger) {
  PinnedBuffer buffer;
  const bool locks = device.type == DeviceType::kCuda;
  if (locks && bytes > 0) {
    std::string error;
    buffer.locked_.reset(CudaAllocateHost(bytes, &error));
    if (buffer.locked_ == nullptr) {
      return absl::ResourceExhaustedError(
          absl::StrCat("CUDA cannot lock ", bytes, " bytes for ", name, " in host memory (", error,
                       "): other programs, a limit of the container's memory or of locked memory "
                       "(ulimit -l) may leave too little"));
    }
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
