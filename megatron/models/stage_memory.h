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
  int64_t bytes = 0;  // that one of them keeps
};

struct StageMemorySizes {
  std::vector<SlotSizes> slots = {SlotSizes()};  // by chunk: what is kept for backward
  std::vector<SlotSizes> deferred = {{0, 0}};    // and from its first part to its second
  int64_t recompute = 0;                         // what recomputed layers keep for their backward
  int64_t scratch = 0;
  int64_t edges = 0;  // what neighbouring stages send
  // Where CUDA graphs find their micro-batches. Not the stage's own memory.
  int64_t graph_inputs = 0;
  // Of sharded weights and gradients what is whole for a while. Not the stage's own memory.
  int64_t whole_weights = 0, whole_gradients = 0;

  int64_t saved() const { return Sum(slots); }
  int64_t put_off() const { return Sum(deferred); }
  int64_t total() const {
    return saved() + put_off() + recompute + scratch + edges + graph_inputs + whole_weights +
           whole_gradients;
  }

 private:
  static int64_t Sum(const std::vector<SlotSizes>& chunks);
};

struct StageMemory {
  StageMemory(Device device, const StageMemorySizes& sizes, MemoryLedger* ledger);

  // What was used so far: on the meta device, what a real one needs.
  StageMemorySizes HighWater() const;

  using Slots = std::vector<std::vector<std::unique_ptr<Arena>>>;  // by chunk and slot
  Slots slots, deferred;
  Arena recompute, scratch, edges;
};

}  // namespace megatron

#endif  // MEGATRON_MODELS_STAGE_MEMORY_H_
