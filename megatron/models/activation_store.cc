#include "megatron/models/activation_store.h"

#include <algorithm>
#include <utility>

#include "glog/logging.h"
#include "megatron/base/round_up.h"
#include "megatron/base/status_macros.h"
#include "megatron/tensor/trace/trace.h"

namespace megatron {
namespace {

int64_t Aligned(int64_t bytes) { return RoundUp(bytes, Buffer::kAlignment); }

}  // namespace

int OffloadSizes::num_windows() const {
  size_t most = 0;
  for (const auto& chunk : segments) most = std::max(most, chunk.size());
  return std::min(static_cast<int>(most), kMostWindows);
}

int64_t OffloadSizes::BytesOfSlot(int chunk) const {
  if (segments.empty()) return 0;
  int64_t bytes = 0;
  for (const int64_t segment : segments[chunk]) bytes += Aligned(segment);
  return bytes;
}

absl::StatusOr<std::unique_ptr<ActivationStore>> ActivationStore::Create(
    const OffloadSizes& sizes, const std::vector<int>& slots, const Stream& stream,
    MemoryLedger* ledger) {
  CHECK(stream.device().type != DeviceType::kCpu);
  const bool measures = stream.is_meta();
  std::unique_ptr<ActivationStore> store(new ActivationStore(stream));
  store->most_kept_.resize(slots.size());
  const int device = stream.device().index;
  if (!measures) {
    store->copies_ = std::make_unique<CudaStream>(device);
    store->copy_stream_ =
        Trace::FollowBeside(stream, Stream::Cuda(device, store->copies_.get()), "offload");
  }
  for (int i = 0; i < (measures ? OffloadSizes::kMostWindows : sizes.num_windows()); ++i) {
    Window window = {Arena(stream.device(), sizes.window, "activations/windows", ledger)};
    if (!measures) {
      window.bytes = window.arena.Allocate(DType::kUInt8, {sizes.window}, "window");
      window.arena.Reset();
      window.copied = std::make_unique<CudaEvent>(device);
      window.used = std::make_unique<CudaEvent>(device);
    }
    store->windows_.push_back(std::move(window));
  }
  for (size_t chunk = 0; chunk < slots.size(); ++chunk) {
    store->slots_.emplace_back();
    for (int i = 0; i < slots[chunk]; ++i) {
      Slot slot;
      slot.store_ = store.get();
      slot.chunk_ = static_cast<int>(chunk);
      if (!measures) {
        int64_t offset = 0;
        for (const int64_t bytes : sizes.segments[chunk]) {
          slot.places_.push_back({offset, 0});
          offset += Aligned(bytes);
        }
        MEGATRON_ASSIGN_OR_RETURN(
            slot.host_, PinnedBuffer::Create(stream.device(), offset, "host/activations", ledger));
      }
      store->slots_.back().push_back(std::move(slot));
    }
  }
  return store;
}

ActivationStore::~ActivationStore() {
  if (copies_ != nullptr) copies_->Synchronize();
}

OffloadSizes ActivationStore::HighWater() const {
  OffloadSizes sizes;
  sizes.segments = most_kept_;
  for (const Window& window : windows_)
    sizes.window = std::max(sizes.window, window.arena.high_water());
  return sizes;
}

std::vector<const Arena*> ActivationStore::windows() const {
  std::vector<const Arena*> arenas;
  for (const Window& window : windows_) arenas.push_back(&window.arena);
  return arenas;
}

void ActivationStore::Copy(const char* name, const Tensor& in, const Tensor& out, Window* window) {
  if (in.bytes() == 0) return;
  window->used->Record(*stream_.cuda());
  window->used->HoldBack(*copies_);
  {
    const TraceSpan span(copy_stream_, name, {{"bytes", in.bytes()}});
    EnqueueCopyOnCuda(copies_.get(), in, out);
  }
  window->copied->Record(*copies_);
}

void ActivationStore::Count(int chunk, int64_t segment, int64_t bytes) {
  std::vector<int64_t>& most = most_kept_[chunk];
  most.resize(std::max(most.size(), static_cast<size_t>(segment) + 1));
  most[segment] = std::max(most[segment], bytes);
}

Arena* ActivationStore::Slot::Begin(int64_t segment) {
  Window& window = store_->WindowOf(segment);
  window.slot = nullptr;
  // The host arena has what backward reads of the segment that was here before.
  window.arena.set_host(nullptr);
  window.arena.Reset();
  // A segment that keeps nothing needs a window, too.
  if (store_->copies_ == nullptr) store_->Count(chunk_, segment, 0);
  return &window.arena;
}

bool ActivationStore::Slot::IsInWindow(int64_t segment) const {
  const Window& window = store_->WindowOf(segment);
  return window.slot == this && window.segment == segment;
}

// What the copy out of a window reads, backward reads too.
void ActivationStore::Slot::Acquire(int64_t segment) {
  if (IsInWindow(segment)) return;
  const Window& window = store_->WindowOf(segment);
  if (window.copied != nullptr) window.copied->HoldBack(*store_->stream_.cuda());
}

void ActivationStore::Slot::Leave(int64_t segment) {
  Window& window = store_->WindowOf(segment);
  const int64_t bytes = window.arena.Mark();
  if (store_->copies_ == nullptr) return store_->Count(chunk_, segment, bytes);
  Place& place = places_[segment];
  place.bytes = bytes;
  store_->Copy("activations to host", window.bytes.Slice(0, 0, bytes),
               host_.At(place.offset, DType::kUInt8, {bytes}), &window);
  window.slot = this;
  window.segment = segment;
}

void ActivationStore::Slot::Fetch(int64_t segment) {
  if (IsInWindow(segment)) return;
  Window& window = store_->WindowOf(segment);
  window.slot = nullptr;
  const Place& place = places_[segment];
  store_->Copy("activations from host", host_.At(place.offset, DType::kUInt8, {place.bytes}),
               window.bytes.Slice(0, 0, place.bytes), &window);
}

void ActivationStore::Slot::StartBackward() {
  const int64_t count = static_cast<int64_t>(places_.size());
  const int64_t windows = static_cast<int64_t>(store_->windows_.size());
  for (int64_t i = count - 1; i >= std::max<int64_t>(0, count - windows); --i) Fetch(i);
}

// What comes next into a window is known as soon as it is free: segments come in the order of
// backward.
void ActivationStore::Slot::Release(int64_t segment) {
  const int64_t next = segment - static_cast<int64_t>(store_->windows_.size());
  if (next >= 0 && store_->copies_ != nullptr) Fetch(next);
}

}  // namespace megatron
