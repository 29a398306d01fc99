// PinnedBuffer: page-locked memory of the host, which a GPU copies from and to while the host goes
// on.
//
//   MEGATRON_ASSIGN_OR_RETURN(PinnedBuffer buffer,
//                             PinnedBuffer::Create(stream.device(), bytes, "staging", ledger));
//   const Tensor host = buffer.At(0, DType::kFloat32, {count});
//   EnqueueCopyOnCuda(stream.cuda(), device, host);   // nobody touches `host` until an event
//                                                     // behind the copy is reached
#ifndef MEGATRON_TENSOR_PINNED_BUFFER_H_
#define MEGATRON_TENSOR_PINNED_BUFFER_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "megatron/tensor/memory.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  // Takes zeroed memory for copies from and to `device`: page-locked for a CUDA device, ordinary
  // for the CPU, and none for the meta device. It stands in the ledger, which may be null, under
  // the name. Fails where the system locks no more memory.
  static absl::StatusOr<PinnedBuffer> Create(Device device, int64_t bytes, const std::string& name,
                                             MemoryLedger* ledger);

  int64_t bytes() const { return bytes_.bytes(); }
  // Returns a tensor over the bytes from `offset` on: on the CPU, or for the meta device there.
  Tensor At(int64_t offset, DType dtype, const Shape& shape) const;

 private:
  struct Free {
    void operator()(void* memory) const;
  };

  Buffer bytes_;  // the memory but for a CUDA device; there the entry in the ledger
  std::unique_ptr<void, Free> locked_;
};

}  // namespace megatron

#endif  // MEGATRON_TENSOR_PINNED_BUFFER_H_
