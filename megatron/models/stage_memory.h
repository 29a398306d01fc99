// The arenas that a pipeline stage works in.
#ifndef MEGATRON_MODELS_STAGE_MEMORY_H_
#define MEGATRON_MODELS_STAGE_MEMORY_H_

#include <memory>
#include <vector>

#include "megatron/tensor/memory.h"

namespace megatron {

// Of one chunk of the stage.
struct SlotSizes {
  int count = 1;      // micro-batches in flight
  int64_t bytes = 0;  // that one of them keeps for its backward
};

struct StageMemorySizes {
  std::vector<SlotSizes> slots = {SlotSizes()};  // by chunk
  int64_t recompute = 0;                         // what recomputed layers keep for their backward
  int64_t scratch = 0;
  int64_t edges = 0;  // what neighbouring stages send

  int64_t saved() const;  // of all slots
};

struct StageMemory {
  StageMemory(Device device, const StageMemorySizes& sizes, MemoryLedger* ledger);

  // What was used so far: on the meta device, what a real one needs.
  StageMemorySizes HighWater() const;

  std::vector<std::vector<std::unique_ptr<Arena>>> slots;  // by chunk and slot
  Arena recompute, scratch, edges;
};

}  // namespace megatron

#endif  // MEGATRON_MODELS_STAGE_MEMORY_H_
