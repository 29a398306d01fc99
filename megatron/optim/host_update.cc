#include "megatron/optim/host_update.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "megatron/base/status_macros.h"

namespace megatron {

absl::StatusOr<std::unique_ptr<HostUpdate>> HostUpdate::Create(
    const Stream& stream, int64_t most_elements, std::optional<DType> gradients_dtype,
    std::optional<DType> weights_dtype, bool reads_weights, int threads, MemoryLedger* ledger) {
  CHECK(stream.device().type != DeviceType::kCpu);
  std::unique_ptr<HostUpdate> update(
      new HostUpdate(stream, gradients_dtype.has_value(), reads_weights, threads));
  const auto take = [&](DType dtype) {
    return PinnedBuffer::Create(stream.device(), most_elements * SizeOf(dtype),
                                "host/optimizer staging", ledger);
  };
  CHECK(weights_dtype.has_value() || !gradients_dtype.has_value());
  if (!weights_dtype.has_value()) return update;
  update->slots_.resize(2);
  for (Slot& slot : update->slots_) {
    if (gradients_dtype.has_value()) {
      MEGATRON_ASSIGN_OR_RETURN(slot.gradients, take(*gradients_dtype));
    }
    MEGATRON_ASSIGN_OR_RETURN(slot.weights, take(*weights_dtype));
    if (stream.is_meta()) continue;
    const int device = stream.device().index;
    slot.fetched = std::make_unique<CudaEvent>(device);
    slot.sent = std::make_unique<CudaEvent>(device);
  }
  if (stream.is_meta()) return update;
  const int device = stream.device().index;
  update->to_host_ = std::make_unique<CudaStream>(device);
  update->from_host_ = std::make_unique<CudaStream>(device);
  update->given_ = std::make_unique<CudaEvent>(device);
  return update;
}

HostUpdate::~HostUpdate() {
  for (const auto* stream : {&to_host_, &from_host_}) {
    if (*stream != nullptr) (*stream)->Synchronize();
  }
}

HostPart HostUpdate::In(const Slot& slot, const HostPart& part) const {
  return {fetches_gradients_ ? slot.gradients.At(0, part.gradients.dtype(), part.gradients.shape())
                             : part.gradients,
          slot.weights.At(0, part.weights.dtype(), part.weights.shape())};
}

void HostUpdate::Fetch(const HostPart& part, const Slot& slot) {
  if (stream_.is_meta()) return;
  const HostPart host = In(slot, part);
  // Whoever waits for what is fetched also waits for the weights that the slot had before.
  slot.sent->HoldBack(*to_host_);
  if (fetches_gradients_) EnqueueCopyOnCuda(to_host_.get(), part.gradients, host.gradients);
  if (reads_weights_) EnqueueCopyOnCuda(to_host_.get(), part.weights, host.weights);
  slot.fetched->Record(*to_host_);
}

void HostUpdate::Send(const HostPart& part, const Slot& slot) {
  if (stream_.is_meta()) return;
  EnqueueCopyOnCuda(from_host_.get(), In(slot, part).weights, part.weights);
  slot.sent->Record(*from_host_);
}

void HostUpdate::Run(absl::Span<const HostPart> parts, absl::FunctionRef<void()> meanwhile,
                     absl::FunctionRef<void(size_t, const HostPart&, const Stream&)> update) {
  const Stream host = stream_.is_meta() ? stream_ : Stream::Cpu(&pool_);
  const auto update_now = [&](size_t i, const HostPart& part) {
    if (stream_.is_meta()) return update(i, part, host);
    PushCudaRange(absl::StrCat("update of ", part.gradients.numel(), " elements"));
    update(i, part, host);
    PopCudaRange();
  };
  if (slots_.empty()) {
    meanwhile();
    for (size_t i = 0; i < parts.size(); ++i) update_now(i, parts[i]);
    return;
  }
  if (given_ != nullptr) {
    given_->Record(*stream_.cuda());
    given_->HoldBack(*to_host_);
    given_->HoldBack(*from_host_);
  }
  for (size_t i = 0; i < std::min(parts.size(), slots_.size()); ++i) Fetch(parts[i], slots_[i]);
  meanwhile();
  for (size_t i = 0; i < parts.size(); ++i) {
    const Slot& slot = slots_[i % slots_.size()];
    if (slot.fetched != nullptr) slot.fetched->Wait();
    update_now(i, In(slot, parts[i]));
    Send(parts[i], slot);
    if (i + slots_.size() < parts.size()) Fetch(parts[i + slots_.size()], slot);
  }
  if (given_ == nullptr) return;
  for (const Slot& slot : slots_) slot.sent->HoldBack(*stream_.cuda());
}

}  // namespace megatron
