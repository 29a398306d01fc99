// The arenas that a pipeline stage works in.
#ifndef MEGATRON_MODELS_STAGE_MEMORY_H_
#define MEGATRON_MODELS_STAGE_MEMORY_H_

#include <memory>
#include <vector>

#include "megatron/tensor/memory.h"

namespace megatron {

struct StageMemorySizes {
  int slots = 1;          // micro-batches in flight
  int64_t slot = 0;       // bytes that one of them keeps for backward
  int64_t recompute = 0;  // bytes that recomputed layers keep for their backward
  int64_t scratch = 0;
  int64_t edges = 0;  // bytes of what neighbouring stages send
};

struct StageMemory {
  StageMemory(Device device, const StageMemorySizes& sizes, MemoryLedger* ledger);

  // What was used so far: on the meta device, what a real one needs.
  StageMemorySizes HighWater() const;

  std::vector<std::unique_ptr<Arena>> slots;
  Arena recompute, scratch, edges;
};

}  // namespace megatron

#endif  // MEGATRON_MODELS_STAGE_MEMORY_H_
