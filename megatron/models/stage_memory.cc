#include "megatron/models/stage_memory.h"

#include <algorithm>
#include <utility>

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

int64_t HostHighWater(const Arena& arena) {
  return arena.host() == nullptr ? 0 : arena.host()->high_water();
}

std::vector<SlotSizes> HighWaterOf(const StageMemory::Slots& slots) {
  std::vector<SlotSizes> sizes;
  for (const auto& chunk : slots) {
    sizes.push_back({static_cast<int>(chunk.size()), 0});
    for (const auto& slot : chunk) {
      sizes.back().bytes = std::max(sizes.back().bytes, slot->high_water());
      sizes.back().host = std::max(sizes.back().host, HostHighWater(*slot));
    }
  }
  return sizes;
}

// Gives the arena a host arena of so many bytes.
absl::Status AddHostArena(int64_t bytes, const Stream& stream, MemoryLedger* ledger, Arena* arena,
                          std::vector<StageMemory::HostArena>* host_arenas) {
  StageMemory::HostArena host;
  MEGATRON_ASSIGN_OR_RETURN(
      host.memory, PinnedBuffer::Create(stream.device(), bytes, "host/activations", ledger));
  host.arena = std::make_unique<Arena>(host.memory.At(0, DType::kUInt8, {host.memory.bytes()}));
  arena->set_host(host.arena.get());
  host_arenas->push_back(std::move(host));
  return absl::OkStatus();
}

}  // namespace

int64_t StageMemorySizes::Sum(const std::vector<SlotSizes>& chunks) {
  int64_t bytes = 0;
  for (const SlotSizes& chunk : chunks) bytes += chunk.count * chunk.bytes;
  return bytes;
}

int64_t StageMemorySizes::host() const {
  int64_t bytes = host_recompute + host_scratch;
  for (size_t chunk = 0; chunk < slots.size(); ++chunk) {
    bytes +=
        slots[chunk].count * (slots[chunk].host + offload.BytesOfSlot(static_cast<int>(chunk)));
  }
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

absl::Status StageMemory::MakeHostArenas(const StageMemorySizes& sizes, const Stream& stream,
                                         MemoryLedger* ledger) {
  for (size_t chunk = 0; chunk < slots.size(); ++chunk) {
    const int64_t bytes = stream.is_meta() ? 0 : sizes.slots[chunk].host;
    for (const auto& slot : slots[chunk])
      MEGATRON_RETURN_IF_ERROR(AddHostArena(bytes, stream, ledger, slot.get(), &host_arenas));
  }
  MEGATRON_RETURN_IF_ERROR(
      AddHostArena(sizes.host_recompute, stream, ledger, &recompute, &host_arenas));
  MEGATRON_RETURN_IF_ERROR(
      AddHostArena(sizes.host_scratch, stream, ledger, &scratch, &host_arenas));
  host_copies = std::make_unique<HostCopies>(stream);
  return absl::OkStatus();
}

StageMemorySizes StageMemory::HighWater() const {
  StageMemorySizes sizes;
  sizes.slots = HighWaterOf(slots);
  sizes.deferred = HighWaterOf(deferred);
  sizes.recompute = recompute.high_water();
  sizes.scratch = scratch.high_water();
  sizes.host_recompute = HostHighWater(recompute);
  sizes.host_scratch = HostHighWater(scratch);
  sizes.edges = edges.high_water();
  if (store != nullptr) sizes.offload = store->HighWater();
  return sizes;
}

}  // namespace megatron
