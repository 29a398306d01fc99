#include "megatron/models/stage_memory.h"

#include <algorithm>

namespace megatron {

StageMemory::StageMemory(Device device, const StageMemorySizes& sizes, MemoryLedger* ledger)
    : recompute(device, sizes.recompute, "activations/recomputed", ledger),
      scratch(device, sizes.scratch, "activations/temporary", ledger),
      edges(device, sizes.edges, "activations/edges", ledger) {
  for (int i = 0; i < sizes.slots; ++i) {
    slots.push_back(std::make_unique<Arena>(device, sizes.slot, "activations/saved", ledger));
  }
}

StageMemorySizes StageMemory::HighWater() const {
  StageMemorySizes sizes;
  sizes.slots = static_cast<int>(slots.size());
  for (const auto& slot : slots) sizes.slot = std::max(sizes.slot, slot->high_water());
  sizes.recompute = recompute.high_water();
  sizes.scratch = scratch.high_water();
  sizes.edges = edges.high_water();
  return sizes;
}

}  // namespace megatron
