#include "megatron/optim/host_update.h"

#include <algorithm>

#include "glog/logging.h"
#include "megatron/base/status_macros.h"

namespace megatron {

absl::StatusOr<std::unique_ptr<HostUpdate>> HostUpdate::Create(const Stream& stream,
                                                               int64_t most_elements,
                                                               std::optional<DType> weights_dtype,
                                                               int threads, MemoryLedger* ledger) {
  CHECK(stream.device().type != DeviceType::kCpu);
  std::unique_ptr<HostUpdate> update(new HostUpdate(stream, threads));
  const auto take = [&](DType dtype) {
    return PinnedBuffer::Create(stream.device(), most_elements * SizeOf(dtype),
                                "host/optimizer staging", ledger);
  };
  if (!weights_dtype.has_value()) return update;
  update->slots_.resize(2);
  for (Slot& slot : update->slots_) {
    MEGATRON_ASSIGN_OR_RETURN(slot.gradients, take(DType::kFloat32));
    MEGATRON_ASSIGN_OR_RETURN(slot.weights, take(*weights_dtype));
    if (!stream.is_meta()) slot.reached = std::make_unique<CudaEvent>(stream.device().index);
  }
  return update;
}

HostUpdate::~HostUpdate() {
  for (const Slot& slot : slots_) {
    if (slot.reached != nullptr) slot.reached->Wait();
  }
}

HostPart HostUpdate::In(const Slot& slot, const HostPart& part) const {
  return {slot.gradients.At(0, part.gradients.dtype(), part.gradients.shape()),
          slot.weights.At(0, part.weights.dtype(), part.weights.shape())};
}

void HostUpdate::Copy(const Tensor& in, const Tensor& out) {
  if (!stream_.is_meta()) EnqueueCopyOnCuda(stream_.cuda(), in, out);
}

void HostUpdate::Fetch(const HostPart& part, const Slot& slot) {
  const HostPart host = In(slot, part);
  Copy(part.gradients, host.gradients);
  if (part.weights.dtype() == DType::kFloat32) Copy(part.weights, host.weights);
  if (slot.reached != nullptr) slot.reached->Record(*stream_.cuda());
}

void HostUpdate::Run(absl::Span<const HostPart> parts, absl::FunctionRef<void()> meanwhile,
                     absl::FunctionRef<void(size_t, const HostPart&, const Stream&)> update) {
  const Stream host = stream_.is_meta() ? stream_ : Stream::Cpu(&pool_);
  if (slots_.empty()) {
    meanwhile();
    for (size_t i = 0; i < parts.size(); ++i) update(i, parts[i], host);
    return;
  }
  for (size_t i = 0; i < std::min(parts.size(), slots_.size()); ++i) Fetch(parts[i], slots_[i]);
  meanwhile();
  for (size_t i = 0; i < parts.size(); ++i) {
    const Slot& slot = slots_[i % slots_.size()];
    const HostPart copy = In(slot, parts[i]);
    // The weights that the slot had before were sent on the same stream, before its gradients.
    if (slot.reached != nullptr) slot.reached->Wait();
    update(i, copy, host);
    Copy(copy.weights, parts[i].weights);
    if (slot.reached != nullptr) slot.reached->Record(*stream_.cuda());
    if (i + slots_.size() < parts.size()) Fetch(parts[i + slots_.size()], slot);
  }
}

}  // namespace megatron
