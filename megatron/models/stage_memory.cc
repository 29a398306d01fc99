#include "megatron/models/stage_memory.h"

#include <algorithm>

namespace megatron {

int64_t StageMemorySizes::saved() const {
  int64_t bytes = 0;
  for (const SlotSizes& chunk : slots) bytes += chunk.count * chunk.bytes;
  return bytes;
}

StageMemory::StageMemory(Device device, const StageMemorySizes& sizes, MemoryLedger* ledger)
    : recompute(device, sizes.recompute, "activations/recomputed", ledger),
      scratch(device, sizes.scratch, "activations/temporary", ledger),
      edges(device, sizes.edges, "activations/edges", ledger) {
  for (const SlotSizes& chunk : sizes.slots) {
    slots.emplace_back();
    for (int i = 0; i < chunk.count; ++i) {
      slots.back().push_back(
          std::make_unique<Arena>(device, chunk.bytes, "activations/saved", ledger));
    }
  }
}

StageMemorySizes StageMemory::HighWater() const {
  StageMemorySizes sizes;
  sizes.slots.clear();
  for (const auto& chunk : slots) {
    sizes.slots.push_back({static_cast<int>(chunk.size()), 0});
    for (const auto& slot : chunk)
      sizes.slots.back().bytes = std::max(sizes.slots.back().bytes, slot->high_water());
  }
  sizes.recompute = recompute.high_water();
  sizes.scratch = scratch.high_water();
  sizes.edges = edges.high_water();
  return sizes;
}

}  // namespace megatron
