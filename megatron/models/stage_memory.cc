#include "megatron/models/stage_memory.h"

#include <algorithm>

#include "megatron/base/status_macros.h"

namespace megatron {

namespace {

StageMemory::Slots MakeSlots(Device device, const std::vector<SlotSizes>& sizes, const char* name,
                             MemoryLedger* ledger) {
  StageMemory::Slots slots;
  for (const SlotSizes& chunk : sizes) {
    slots.emplace_back();
    for (int i = 0; i < chunk.count; ++i)
      slots.back().push_back(std::make_unique<Arena>(device, chunk.bytes, name, ledger));
  }
  return slots;
}

std::vector<SlotSizes> HighWaterOf(const StageMemory::Slots& slots) {
  std::vector<SlotSizes> sizes;
  for (const auto& chunk : slots) {
    sizes.push_back({static_cast<int>(chunk.size()), 0});
    for (const auto& slot : chunk)
      sizes.back().bytes = std::max(sizes.back().bytes, slot->high_water());
  }
  return sizes;
}

}  // namespace

int64_t StageMemorySizes::Sum(const std::vector<SlotSizes>& chunks) {
  int64_t bytes = 0;
  for (const SlotSizes& chunk : chunks) bytes += chunk.count * chunk.bytes;
  return bytes;
}

int64_t StageMemorySizes::host() const {
  int64_t bytes = 0;
  for (size_t chunk = 0; chunk < slots.size(); ++chunk)
    bytes += slots[chunk].count * offload.BytesOfSlot(static_cast<int>(chunk));
  return bytes;
}

StageMemory::StageMemory(Device device, const StageMemorySizes& sizes, MemoryLedger* ledger)
    : slots(MakeSlots(device, sizes.slots, "activations/saved", ledger)),
      deferred(MakeSlots(device, sizes.deferred, "activations/deferred", ledger)),
      recompute(device, sizes.recompute, "activations/recomputed", ledger),
      scratch(device, sizes.scratch, "activations/temporary", ledger),
      edges(device, sizes.edges, "activations/edges", ledger) {}

absl::Status StageMemory::MakeStore(const StageMemorySizes& sizes, const Stream& stream,
                                    MemoryLedger* ledger) {
  std::vector<int> counts;
  for (const auto& chunk : slots) counts.push_back(static_cast<int>(chunk.size()));
  MEGATRON_ASSIGN_OR_RETURN(store, ActivationStore::Create(sizes.offload, counts, stream, ledger));
  return absl::OkStatus();
}

StageMemorySizes StageMemory::HighWater() const {
  StageMemorySizes sizes;
  sizes.slots = HighWaterOf(slots);
  sizes.deferred = HighWaterOf(deferred);
  sizes.recompute = recompute.high_water();
  sizes.scratch = scratch.high_water();
  sizes.edges = edges.high_water();
  if (store != nullptr) sizes.offload = store->HighWater();
  return sizes;
}

}  // namespace megatron
